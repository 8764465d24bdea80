"""``scripts/setup_env.sh``: quick the second time, one clear message when it cannot continue."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import REPOSITORY


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files that the script reads, without an environment."""
    shutil.copytree(REPOSITORY / "scripts", tmp_path / "clone/scripts")
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path / "clone")
    return tmp_path / "clone"


@pytest.fixture
def run(clone: Path, tmp_path: Path):
    """Run it with these programs in place of the machine's own: ``(exit code, stdout, stderr)``."""
    programs = tmp_path / "bin"
    programs.mkdir()

    def run_with(
        stack: str = "cpu", environment: dict[str, str] | None = None, **replaced: str
    ) -> tuple[int, str, str]:
        for name, script in replaced.items():
            program = programs / name.replace("_", "-")
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
        done = subprocess.run(
            ["bash", str(clone / "scripts/setup_env.sh")],
            env={
                **{"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path)},
                **{"MMR1_STACK": stack, **(environment or {})},
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return run_with


OLD = 'case "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac'
# Stands for a Python 3.11 whose pip cannot reach its index.
OFFLINE = (
    'case "$*" in --version) echo Python 3.11.9;; *"-m venv"*) '
    'mkdir -p .venv/bin; cp "$0" .venv/bin/python;; *sysconfig*) echo .venv;; '
    '*"pip install"*) echo "Failed to establish a new connection: Network is unreachable"; exit 1;;'
    " esac"
)


def test_python_too_old(run, clone):
    names = ("python3", "python3.11", "python3.12", "python3.13")
    code, _, message = run(**dict.fromkeys(names, OLD))
    assert code == 1
    assert message.count("\n") == 1
    assert "Python 3.11 or newer is needed; python3 is Python 3.9.2" in message
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize(("stack", "free", "needed"), [("cpu", 1, 8), ("cuda", 19, 20)])
def test_no_disk(run, stack, free, needed):
    df = f"printf 'h\\nfs 1 1 {free * 2**20} 1%% /\\n'"
    code, _, message = run(stack, python3="exit 0", df=df)
    assert code == 1
    assert f"{free} GiB free here and {needed} GiB are needed for the {stack} stack" in message


@pytest.mark.parametrize(("driver", "fits"), [("550.90.07", False), ("580.65.06", True)])
def test_setup_refuses_a_driver_too_old_for_cuda(run, driver, fits):
    df = "printf 'h\\nfs 1 1 99999999 1%% /\\n'"
    code, out, message = run("cuda", python3=OFFLINE, df=df, nvidia_smi=f"echo {driver}")
    assert code == 1
    assert (f"driver is {driver}, and CUDA 13 needs 580" in message) != fits
    assert ("setup: installing" in out) == fits


def test_index_unreachable(run):
    df = "printf 'h\\nfs 1 1 99999999 1%% /\\n'"
    code, out, message = run(python3=OFFLINE, df=df)
    assert code == 1
    assert "setup: installing the CPU build of torch" in out
    assert "package index cannot be reached" in message.splitlines()[-1]


@pytest.mark.parametrize("found", [True, False])
def test_pytorch_is_asked_where_the_index_has_no_cpu_build(run, found):
    df = "printf 'h\\nfs 1 1 99999999 1%% /\\n'"
    unresolved = '*"pip install"*) echo "ERROR: ResolutionImpossible"; exit 1;; "")'
    own = "--torch-backend cpu"
    uv = f'case "$*" in *"{own}"*"torch==2.13.0"*) exit {int(not found)};; esac; exit 1'
    code, out, message = run(python3=OFFLINE.replace('*"pip install"*)', unresolved), df=df, uv=uv)
    assert code == 1  # these find nothing but torch
    assert "setup: installing it from PyTorch's own index\n" in out
    assert ("setup: installing mmr1 with vLLM for the CPU\n" in out) == found
    told = "pip could not install mmr1" if found else "Set PIP_EXTRA_INDEX_URL to PyTorch"
    assert told in message.splitlines()[-1]


@pytest.mark.parametrize(
    ("environment", "told"), [({}, ""), ({"PYTHONDONTWRITEBYTECODE": "1"}, "1")]
)
def test_uv_compiles_bytecode_where_python_may_not_write_it(run, clone, environment, told):
    df = "printf 'h\\nfs 1 1 99999999 1%% /\\n'"
    uv = f'printf "%s\\n" "$UV_COMPILE_BYTECODE" >>{clone}/told; exit 1'
    run(python3=OFFLINE, df=df, uv=uv, environment=environment)
    assert (clone / "told").read_text() == f"{told}\n"


def test_the_second_time_it_has_nothing_to_do(run, clone):
    stamp = subprocess.run(
        "cat pyproject.toml scripts/setup_env.sh scripts/env/*.py scripts/env/*.lock"
        " | cksum | cut -d' ' -f1",
        shell=True,
        cwd=clone,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    (clone / ".venv").mkdir()
    (clone / ".venv/.stamp").write_text(f"{stamp}-cpu-dev")
    code, out, _ = run(python3="exit 1")
    assert code == 0
    assert out == "setup: environment is up to date (cpu stack, .venv)\n"


def test_an_unknown_stack_is_named(clone):
    done = subprocess.run(
        ["bash", str(clone / "scripts/setup_env.sh")],
        env={"PATH": "/usr/bin:/bin", "MMR1_STACK": "rocm"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "MMR1_STACK is 'rocm'; it can be cpu or cuda" in done.stderr


@pytest.fixture
def uv_settings(tmp_path: Path):
    """What uv is told of this pip configuration."""

    def read(configuration: str, **environment: str) -> list[str]:
        file = tmp_path / "pip.conf"
        file.write_text(configuration)
        done = subprocess.run(
            [sys.executable, str(REPOSITORY / "scripts/env/uv_settings.py")],
            env={"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": str(file), **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    return read


def test_uv_is_told_of_pips_mirror(uv_settings):
    lines = uv_settings(
        "[global]\nindex-url = https://me:p@mirror/simple\n"
        "extra-index-url = https://one/simple\n    https://two/simple\n"
        "find-links =\n    /wheels\n    /more\n",
        PIP_INDEX_URL="https://environment/simple",
    )
    assert "export UV_DEFAULT_INDEX=https://environment/simple" in lines
    assert "export UV_INDEX='https://one/simple https://two/simple'" in lines
    assert "export UV_FIND_LINKS=/wheels,/more" in lines


def test_uvs_own_settings_are_kept(uv_settings):
    lines = uv_settings("[global]\nindex-url = https://mirror/simple\n", UV_DEFAULT_INDEX="mine")
    assert not any("UV_DEFAULT_INDEX" in line for line in lines)


def test_settings_of_a_mirror_reach_a_shell_whole(uv_settings):
    lines = uv_settings("[global]\nindex-url = https://me:p$w'd@mirror/simple\n")
    seen = subprocess.run(
        "\n".join(lines) + '\nprintf %s "$UV_DEFAULT_INDEX"',
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout == "https://me:p$w'd@mirror/simple"
