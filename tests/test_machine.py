"""What a machine computes in, and what is chosen and said by it."""

from __future__ import annotations

import math
import platform
from pathlib import Path

import pytest
import torch

from mmr1 import doctor, machine
from mmr1.config import Config
from mmr1.config.file import load_config
from mmr1.runtime import bfloat16_cost, warn_of_emulated_bfloat16

# Shortened, as Linux writes them of an Intel Xeon, an AMD EPYC (Zen 4 and Zen 3), a Neoverse V1.
CPUS = {
    "AMX": "flags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16 avx512_fp16 amx_tile amx_int8",
    "AVX512-BF16": "flags\t\t: fpu avx2 avx512f avx512_vnni avx512_bf16",
    None: "flags\t\t: fpu avx2 fma\nbugs\t\t: no_bf16",
    "Arm BF16": "Features\t: fp asimd sve svebf16 bf16",
}


@pytest.fixture
def cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """This process on another machine: without a GPU, and with the CPU of these lines."""

    def describe(lines: str) -> None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{lines}\n")
        monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
        monkeypatch.setattr(machine, "GPU_FILES", ())

    return describe


@pytest.mark.parametrize("name", CPUS)
def test_the_instructions_are_read(cpu, name):
    cpu(CPUS[name])
    assert machine.native_bfloat16() == name
    assert machine.auto_dtype() == ("bfloat16" if name else "float32")


def test_nothing_is_known_where_nothing_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "none")
    assert machine.native_bfloat16() is None


@pytest.mark.skipif(platform.machine() != "x86_64", reason="torch tells these of x86 only")
def test_torch_finds_the_same_here():
    found = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    assert (machine.native_bfloat16() is not None) == found


def config(rollout: dict[str, object]) -> Config:
    return Config.model_validate({"model": {"path": "x", "dtype": "auto"}, "rollout": rollout})


@pytest.mark.parametrize(("name", "dtype"), [(None, "float32"), ("AVX512-BF16", "bfloat16")])
def test_auto_is_resolved_when_the_configuration_is_read(cpu, name, dtype):
    cpu(CPUS[name])
    resolved = config({"engine": {"type": "vllm", "dtype": "auto"}})
    assert (resolved.model.dtype, resolved.rollout_dtype) == (dtype, dtype)
    cpu(CPUS["AMX"])  # what a run has written does not change with the machine
    assert Config.model_validate(resolved.model_dump(mode="json")) == resolved


def test_the_transformers_engine_samples_from_the_model_as_it_is(cpu):
    cpu(CPUS["AMX"])
    tree = {"model": {"path": "x", "dtype": "float32"}, "rollout": {"engine": "hf"}}
    assert Config.model_validate(tree).rollout_dtype == "float32"
    with pytest.raises(ValueError, match="type 'hf' has no 'dtype'"):
        load_config(None, ["model.path=x", "rollout.engine=hf", "rollout.engine.dtype=auto"])


def test_emulated_bfloat16_is_warned_of(cpu, caplog):
    state = torch.get_rng_state()
    for name in CPUS:
        cpu(CPUS[name])
        warn_of_emulated_bfloat16({"model.dtype": "float32", "rollout.engine.dtype": "bfloat16"})
        warn_of_emulated_bfloat16({"model.dtype": "float32"})
    (message,) = caplog.messages
    assert message.startswith(
        "rollout.engine.dtype=bfloat16: this CPU has no instructions for bfloat16"
    )
    assert torch.equal(torch.get_rng_state(), state)
    cost = bfloat16_cost(64)
    assert math.isfinite(cost)
    assert cost > 0


@pytest.mark.parametrize("command", ["train", "sft"])
def test_commands_warn(cpu, command, tiny_model, tmp_path, mmr1):
    cpu(CPUS[None])
    (tmp_path / "rows.jsonl").write_text("[]\n")  # it ends where the rows are read
    path = tmp_path / "run.yaml"
    path.write_text(
        f"model: {{path: {tiny_model}}}\ndata: {{train: {tmp_path}/rows.jsonl}}\n"
        f"trainer: {{output_dir: {tmp_path}/run}}\n"
        + ("rollout: {engine: hf}\n" if command == "train" else "")
    )
    code, _, err = mmr1(command, path)
    assert code == 2
    assert "WARNING mmr1.runtime: model.dtype=bfloat16: this CPU has no instructions" in err
    code, _, err = mmr1(command, path, "model.dtype=auto")
    assert "rows.jsonl" in err
    assert "WARNING" not in err


def test_the_doctor_says_what_it_found_and_chose(cpu):
    cpu(CPUS[None])
    check = doctor._bfloat16()
    assert check.state.startswith("emulated by this CPU; a matrix product takes ")
    assert check.state.endswith("times the CPU time of float32; auto means float32")
    cpu(CPUS["AMX"])
    assert doctor._bfloat16().state.startswith("AMX; ")
    assert doctor._bfloat16().state.endswith("auto means bfloat16")
