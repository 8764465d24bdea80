"""Each wall holds, and where one is missing nothing runs."""

from __future__ import annotations

import logging
import os
import platform
import pwd
import shutil
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from mmr1.config import ScoringConfig, read_rewards
from mmr1.rewards import Job, build_composite_reward
from mmr1.rewards.sandbox import walls
from mmr1.rewards.sandbox.pool import Pool, try_walls
from mmr1.rewards.sandbox.walls import (
    LANDLOCK,
    REQUIRED,
    SECCOMP,
    WALLS,
    plugin_paths,
    python_paths,
    worker_environment,
)
from mmr1.types import Reward, Status
from tests.paths import REPOSITORY
from tests.rewards.helpers import item, think

NOTHING = Job("mmr1.rewards.sandbox.pool:do_nothing", ())


def light_pool(**settings: object) -> Pool:
    """Workers without the verifier: quick to start."""
    return Pool(1, timeout_s=5.0, warm=NOTHING, **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with light_pool() as shared:
        shared.start()
        yield shared


def ask(pool: Pool, name: str, *args: object) -> Reward:
    ((reward,),) = pool.run([Job(f"tests.rewards.sandbox.hostile:{name}", args, cached=False)])
    return reward


def needs_landlock(pool: Pool) -> None:
    if LANDLOCK in pool.missing:
        pytest.skip(f"no Landlock here: {pool.missing[LANDLOCK]}")


# --- system calls --------------------------------------------------------------------------------


def test_no_process_can_be_signalled_through_a_descriptor(pool: Pool) -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as victim:
        assert ask(pool, "set_async_owner", victim.pid).value == 3.0
        assert victim.poll() is None
        victim.kill()


def test_what_python_does_with_fcntl_and_threads_works(pool: Pool) -> None:
    assert ask(pool, "harmless_fcntl").value == 1.0
    assert ask(pool, "start_a_thread").value == 1.0


def test_what_python_asks_of_its_own_process_is_answered(pool: Pool) -> None:
    assert ask(pool, "questions_of_oneself").value == 1.0


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no compiler that could be asked")
def test_find_library_starts_no_compiler(pool: Pool) -> None:
    assert ask(pool, "find_library").value == 1.0


# asm-generic/ioctls.h, asm-generic/sockios.h
@pytest.mark.parametrize(
    "command",
    [0x5452, 0x8901, 0x8902, termios.TIOCSTI],
    ids=["FIOASYNC", "FIOSETOWN", "SIOCSPGRP", "TIOCSTI"],
)
def test_no_ioctl_but_one(pool: Pool, command: int) -> None:
    assert ask(pool, "control", command).value == 1.0


_CLOCKS = {"clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230}
_CALLS = {
    "socket": (41, 2, 1, 0), "connect": (42, 3, 0, 0), "kill": (62, 0, 0),
    "tgkill": (234, 1, 1, 0), "fork": (57,),
    "clone of a process": (56, 17, 0, 0, 0, 0), "clone of a network": (56, 0x40010000),
    "execve": (59, 0, 0, 0), "execveat": (322, 0, 0, 0, 0, 0), "ptrace": (101, 16, 1, 0, 0),
    "prctl": (157, 1, 0), "setpriority": (141, 0, 0, 0), "memfd_create": (319, 0, 0),
    "process_vm_readv": (310, 1, 0, 0, 0, 0, 0), "process_vm_writev": (311, 1, 0, 0, 0, 0, 0),
    "bpf": (321, 0, 0, 0), "perf_event_open": (298, 0, 0, 0, 0, 0), "userfaultfd": (323, 0),
    "io_uring_setup": (425, 1, 0), "pidfd_open": (434, 1, 0), "pidfd_send_signal": (424, 0, 0),
    "unshare": (272, 0), "setns": (308, 0, 0), "mount": (165, 0, 0, 0, 0, 0),
    "openat2": (437, 0, 0, 0, 0), "rt_sigqueueinfo": (129, 1, 0, 0), "membarrier": (324, 0, 0),
    "get_robust_list": (274, 1, 0, 0), "prlimit64 of another": (302, 1, 7, 0, 0),
    "prlimit64 that sets": (302, 0, 7, 4096, 0), "socketpair of internet": (53, 2, 1, 0, 0),
    "sched_getaffinity of another": (204, 1, 8, 0),
    **{f"{name} of another": (number, (~1 << 3) | 2, 0, 0, 0) for name, number in _CLOCKS.items()},
    "madvise that poisons": (28, 0, 0, 100), "madvise that pages out": (28, 0, 0, 21),
    "fadvise64 that drops": (221, 0, 0, 0, 4), "x32": (0x40000000 | 39,),
}  # fmt: skip


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86-64")
@pytest.mark.parametrize("name", _CALLS)
def test_a_system_call_is_refused(pool: Pool, name: str) -> None:
    assert ask(pool, "system_call", *_CALLS[name]).value == 1.0


def test_descriptors_of_the_zygote_are_closed() -> None:
    with light_pool() as own:
        assert ask(own, "open_descriptors").value == 0.0


# --- files ---------------------------------------------------------------------------------------


def test_a_worker_reads_nothing_but_python(pool: Pool, tmp_path: Path) -> None:
    needs_landlock(pool)
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    for path in (secret, "/etc/passwd", f"/proc/{os.getpid()}/environ"):
        reward = ask(pool, "read_file", str(path))
        assert reward.status is Status.ERROR
        assert "[Errno 13]" in (reward.error or "")
    assert ask(pool, "list_folder", "/proc").status is Status.ERROR
    assert ask(pool, "list_folder", str(tmp_path)).status is Status.ERROR
    assert ask(pool, "read_file", os.__file__).value == 1.0
    assert ask(pool, "read_file", "/proc/self/status").value == 1.0


def test_a_worker_reads_what_it_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "table").write_text("1")
    (tmp_path / "b").write_text("2")
    (tmp_path / "c").write_text("3")
    with light_pool(readable=[str(tmp_path / "a"), str(tmp_path / "b")]) as own:
        own.start()
        needs_landlock(own)
        assert ask(own, "read_file", str(tmp_path / "a" / "table")).value == 1.0
        assert ask(own, "read_file", str(tmp_path / "b")).value == 1.0
        assert ask(own, "read_file", str(tmp_path / "c")).status is Status.ERROR


def test_a_plugin_in_the_home_folder_does_not_open_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    project = tmp_path / "project"
    (project / "package").mkdir(parents=True)
    (project / "package" / "__init__.py").touch()
    (project / "module.py").touch()
    (project / ".env").touch()
    (project / "data").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(project), *sys.path])
    plugin = str(tmp_path / "reward.py")
    assert plugin_paths(f"{plugin}:reward", ()) == (plugin,)
    below = tmp_path / "rewards" / "mine.py"
    assert plugin_paths(f"{below}:reward", ["~/table"]) == (
        str(below.parent),
        str(tmp_path / "table"),
    )
    assert plugin_paths("package.module:reward", ()) == (f"{project}/package",)
    assert plugin_paths("nowhere.module:reward", ()) == ()
    opened = [path for path in python_paths() if path.startswith(str(tmp_path))]
    assert sorted(opened) == [
        f"{project}/", f"{project}/module.py", f"{project}/package"
    ]  # fmt: skip
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(
        pwd, "getpwuid", lambda _: pwd.struct_passwd(["u"] * 5 + [str(tmp_path), ""])
    )
    assert str(tmp_path) not in [path.rstrip("/") for path in python_paths()]
    assert plugin_paths(f"{plugin}:reward", ()) == (plugin,)


def test_a_worker_reads_the_modules_of_a_folder_on_the_path_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "labels.py").write_text("SECRET = 3")
    (tmp_path / ".env").write_text("KEY=hunter2")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "golds.json").write_text("[]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as python -m and PYTHONPATH=. have it
    with light_pool() as own:
        own.start()
        needs_landlock(own)
        assert ask(own, "read_file", str(tmp_path / "labels.py")).value == 1.0
        for hidden in (".env", "data/golds.json"):
            assert "[Errno 13]" in (ask(own, "read_file", str(tmp_path / hidden)).error or "")


def test_what_is_hidden_beside_a_plugin_stays_closed(tmp_path: Path) -> None:
    (tmp_path / "reward.py").touch()
    (tmp_path / "table.json").write_text("{}")
    (tmp_path / ".env").write_text("KEY=hunter2")
    with light_pool(readable=plugin_paths(f"{tmp_path}/reward.py:reward", ())) as own:
        own.start()
        needs_landlock(own)
        assert ask(own, "read_file", str(tmp_path / "table.json")).value == 1.0
        assert ask(own, "list_folder", str(tmp_path)).value == 1.0
        assert "[Errno 13]" in (ask(own, "read_file", str(tmp_path / ".env")).error or "")


# --- the environment -----------------------------------------------------------------------------


def test_secrets_stay_outside() -> None:
    secrets = {
        "HF_TOKEN": "x", "WANDB_API_KEY": "x", "AWS_SECRET_ACCESS_KEY": "x", "OPENAI_API_KEY": "x",
        "MMR1_API_KEY": "x", "MMR1_APIKEY": "x",
        "MMR1_PAT": "x", "LC_SECRET": "x",
        "PYTHONTOKEN": "x", "SSH_AUTH_SOCK": "x", "DATABASE_URL": "x",
    }  # fmt: skip
    kept = {"PATH": "/bin", "HOME": "/h", "LANG": "C", "LC_ALL": "C", "PYTHONHASHSEED": "0"}
    environment = worker_environment({**secrets, **kept})
    assert kept.items() <= environment.items()
    assert not environment.keys() & secrets.keys()
    with light_pool(environment={**os.environ, **secrets}) as own:
        error = ask(own, "own_environment").error or ""
    assert "PATH" in error
    assert not any(name in error for name in secrets)


# --- walls that are missing ----------------------------------------------------------------------

# A program whose workers find a wall missing, as an old kernel or a container would have it.
_BROKEN = {
    SECCOMP: "mmr1.rewards.sandbox.seccomp.platform.machine = lambda: 'riscv64'",
    "no_new_privs": "walls._PR_SET_NO_NEW_PRIVS = 0",
    "resource limits": "walls.set_limits = lambda limits: __import__('os').listdir('/nonexistent')",
    "death signal": "walls.die_with = lambda parent: None",
    "network namespace": "walls._CLONE_NEWNET = walls._CLONE_NEWUSER = -1",
    LANDLOCK: "mmr1.rewards.sandbox.landlock._CREATE_RULESET = 9999",
}


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Have the workers' interpreter break a wall, through a package that it finds first."""

    def break_wall(wall: str) -> None:
        (tmp_path / "breaking.py").write_text(
            "import mmr1.rewards.sandbox.seccomp, mmr1.rewards.sandbox.landlock\n"
            f"from mmr1.rewards.sandbox import walls\n{_BROKEN[wall]}\n"
            "import ctypes\n"
        )
        boot = sys.modules["mmr1.rewards.sandbox.processes"]
        first = "import json, sys; a = json.loads(sys.argv[1]); sys.path[:] = a['path']; "
        assert first in boot._BOOT
        monkeypatch.setattr(boot, "_BOOT", boot._BOOT.replace(first, first + "import breaking; "))
        monkeypatch.syspath_prepend(tmp_path)
        walls.warn_of_missing_walls.cache_clear()

    return break_wall


def test_every_wall_that_this_machine_has_stands(pool: Pool) -> None:
    assert try_walls() == pool.missing
    assert not set(REQUIRED) & set(pool.missing)


@pytest.mark.parametrize("wall", REQUIRED)
def test_without_a_required_wall_nothing_runs(broken, wall: str, tmp_path: Path) -> None:
    broken(wall)
    ran = tmp_path / "ran"
    plugin = tmp_path / "plugin.py"
    plugin.write_text(f"open({str(ran)!r}, 'w')\ndef reward(completion, answer):\n    return 1.0\n")
    for functions in (
        {"plugin": {"type": f"{plugin}:reward"}},
        {"math": {}},
    ):
        with (
            pytest.raises(ValueError, match=f"lacks: .*{wall}.*allow_weak_sandbox=true"),
            build_composite_reward(read_rewards(functions)) as scorer,
        ):
            scorer.score([item(think(r"2\sqrt{3}"), r"\sqrt{12}")])
    assert not ran.exists()


def test_a_weak_sandbox_can_be_allowed_and_says_what_it_lacks(
    broken, caplog: pytest.LogCaptureFixture
) -> None:
    broken(SECCOMP)
    config = read_rewards({"math": {}}), ScoringConfig(allow_weak_sandbox=True)
    with caplog.at_level(logging.WARNING), build_composite_reward(*config) as scorer:
        (reward,) = scorer.score([item(think(r"2\sqrt{3}"), r"\sqrt{12}")])
    assert reward.value == 1.0
    assert "the sandbox of the rewards lacks: " in caplog.text
    assert "seccomp (there is no system call filter for riscv64)" in caplog.text


@pytest.mark.parametrize("wall", ["network namespace", LANDLOCK])
def test_a_wall_with_another_behind_it_is_told_and_work_goes_on(
    broken, wall: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken(wall)
    with (
        caplog.at_level(logging.WARNING),
        light_pool() as own,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        assert ask(own, "one").value == 1.0
        assert ask(own, "open_socket", server.getsockname()[1]).status is Status.ERROR
        assert wall in own.missing
    assert wall in caplog.text


def test_the_doctor_shows_each_wall_tried(broken) -> None:
    from mmr1 import doctor

    broken(SECCOMP)
    checks = list(doctor.sandbox_checks())
    assert [c.subject for c in checks] == ["sandbox"] * len(WALLS)
    assert [next(w for w in WALLS if w in c.state) for c in checks] == list(WALLS)
    (seccomp,) = [c for c in checks if c.remedy]
    assert "seccomp is missing" in seccomp.state
    assert "allow_weak_sandbox" in (seccomp.remedy or "")


# --- a normal user -------------------------------------------------------------------------------


_AS_A_USER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
_USER = {"PYTHONPATH": str(REPOSITORY), "HOME": "/nonexistent", "PATH": os.environ["PATH"]}


def user_python() -> str:
    """An interpreter that user 65534 can run, who cannot look into root's home."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv to become somebody else")
    # It must start itself too: setpriv still starts the first one with root's rights.
    able = (
        "import subprocess, sys, mmr1.types; assert sys.version_info >= (3, 11); "
        "subprocess.run([sys.executable, '-c', 'import subprocess'], check=True)"
    )
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        command = [*_AS_A_USER, python, "-c", able]
        if subprocess.run(command, capture_output=True, env=_USER, check=False).returncode == 0:
            return python
    pytest.skip("no Python 3.11 here that another user can run")


def test_the_walls_stand_for_a_normal_user() -> None:
    python = user_python()
    program = (
        "import os, sys\n"
        "from mmr1.rewards import Job\n"
        "from mmr1.rewards.sandbox.pool import Pool\n"
        "assert os.getuid() == 65534\n"
        "with Pool(1, warm=Job('mmr1.rewards.sandbox.pool:do_nothing', ())) as pool:\n"
        "    hostile = 'tests.rewards.sandbox.hostile:'\n"
        "    jobs = [Job(hostile + 'one', ()), Job(hostile + 'write_file', (sys.argv[1],)),\n"
        "            Job(hostile + 'read_file', (sys.argv[2],))]\n"
        "    print([r.status.value for (r,) in pool.run(jobs)], sorted(pool.missing))\n"
    )
    with TemporaryDirectory() as folder:  # pytest's own folders are closed to others
        home = Path(folder)
        home.chmod(0o777)
        secret, out = home / "secret", home / "out"
        secret.write_text("x")
        done = subprocess.run(
            [*_AS_A_USER, python, "-c", program, str(out), str(secret)],
            capture_output=True,
            text=True,
            check=False,
            env=_USER,
        )
        assert not out.exists()
    assert done.returncode == 0, done.stderr
    read = "ok" if LANDLOCK in done.stdout else "error"
    assert f"['ok', 'error', '{read}']" in done.stdout
    assert not any(wall in done.stdout for wall in REQUIRED)
