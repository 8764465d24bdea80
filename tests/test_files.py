"""A file is there whole or not at all, with nothing beside it: errors, kills, several at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mmr1.files import atomic, atomic_binary


@pytest.fixture(params=["without a name", "under a temporary name"], autouse=True)
def drafts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to write a draft; a system that has no O_TMPFILE uses the second."""
    if request.param == "under a temporary name":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)


def test_new_and_replaced(tmp_path: Path) -> None:
    for text in ("first\n", "second, ä\n"):
        with atomic(tmp_path / "new/file.txt") as file:
            file.write(text)
        assert (tmp_path / "new/file.txt").read_text(encoding="utf-8") == text
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["file.txt"]


def test_the_mode_is_that_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with atomic(tmp_path / "a"), atomic(tmp_path / "b", 0o600):
        pass
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "b")]
    assert modes == [(tmp_path / "plain").stat().st_mode & 0o777, 0o600]


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"before")

    def write_half() -> None:
        with atomic_binary(tmp_path / "a", tmp_path / "b") as files:
            for file in files:
                file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        write_half()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"before"}


def test_all_are_on_the_disk_before_the_first_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, synced = os.fsync, []

    def fsync(descriptor: int) -> None:
        synced.append(sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith(".")))
        real(descriptor)

    monkeypatch.setattr("mmr1.files.os.fsync", fsync)
    with atomic_binary(tmp_path / "a", tmp_path / "b") as files:
        for file in files:
            file.write(b"x")
    assert synced == [[], [], ["a", "b"]]  # the files, then their folder


WRITER = """
import sys, time
from pathlib import Path
from mmr1.files import atomic_binary
folder = Path(sys.argv[1])
with atomic_binary(folder / "a", folder / "b") as (first, second):
    first.write(b"x" * 100_000)
    first.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="a draft has a name without O_TMPFILE")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_kill_leaves_nothing(tmp_path: Path, end: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as writer:
        assert writer.stdout.readline() == b"writing\n"
        writer.send_signal(end)
    assert list(tmp_path.iterdir()) == []
