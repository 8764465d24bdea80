"""The zygotes of this process: pools that warm up alike have their workers from the same one.

Warming up takes a second of CPU time, and a fork milliseconds.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from mmr1.rewards.item import Job
from mmr1.rewards.sandbox.wire import describe, recv_frame, send_frame
from mmr1.rewards.sandbox.zygote import Settings

_BOOT = (
    "import json, sys; a = json.loads(sys.argv[1]); sys.path[:] = a['path']; "
    "from mmr1.rewards.sandbox import zygote; "
    "zygote.main(int(sys.argv[2]), a['target'], a['args'], walls=a['walls'])"
)
_END_S = 2.0


class ZygoteGoneError(Exception):
    """The zygote has ended; another one has to be started."""

    def __init__(self) -> None:
        super().__init__("the process that they are forked from has ended")


class Zygote:
    """A process that has warmed up. It ends when nobody holds this object any more.

    Args:
        command: What to start; the descriptor of its door is added.
        environment: Its environment.
        patience_s: Longest wait for the warm-up.
        walls: What the workers print goes nowhere. Without, it goes where this process prints.

    Raises:
        ValueError: The warm-up fails or takes too long.
    """

    def __init__(
        self, command: list[str], environment: Mapping[str, str], patience_s: float, *, walls: bool
    ) -> None:
        self._door, theirs = socket.socketpair()
        output = subprocess.DEVNULL if walls else None
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._forgotten = False
        self._end = weakref.finalize(self, _end, self._door, self._process)
        self._door.settimeout(patience_s)
        try:
            problem = json.loads(recv_frame(self._door))
        except TimeoutError:
            problem = f"the verifier gives no sign of life in {patience_s:g} s"
        except (EOFError, OSError):
            problem = f"the verifier ended while starting ({describe(self._process.wait())})"
        if problem:
            self._end()
            raise ValueError(problem)

    def connect(self, settings: Settings) -> socket.socket:
        """The line of another pool. When it is closed, the workers forked over it end.

        Raises:
            OSError: There is no descriptor left, or the zygote is gone.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            send_frame(ours, json.dumps(asdict(settings)).encode())
            try:
                socket.send_fds(self._door, [b"P"], [theirs.fileno()])
            except OSError:
                self.forget()
                ours.close()
                raise
        return ours

    def forget(self) -> None:
        """No other pool gets it: it did not answer."""
        self._forgotten = True

    @property
    def usable(self) -> bool:
        return not self._forgotten and self._process.poll() is None


def _end(door: socket.socket, process: subprocess.Popen[bytes]) -> None:
    door.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_lock = threading.Lock()
_zygotes: weakref.WeakValueDictionary[str, Zygote] = weakref.WeakValueDictionary()
_keepers: list[set[Zygote]] = []


def shared_zygote(
    warm: Job, environment: Mapping[str, str], patience_s: float, *, walls: bool
) -> Zygote:
    """The zygote of this folder with this warm-up and environment; started if there is none.

    Raises:
        ValueError: Its warm-up fails or takes too long.
    """
    boot = {
        "path": [os.path.abspath(p) for p in sys.path],  # noqa: PTH100 - "" is the cwd
        "target": warm.target,
        "args": warm.args,
        "walls": walls,
    }
    command = [sys.executable, "-c", _BOOT, json.dumps(boot)]
    folder = Path().stat()  # relative paths of plugins are looked up in it
    key = json.dumps([command, sorted(environment.items()), folder.st_dev, folder.st_ino])
    with _lock:
        zygote = _zygotes.get(key)
        if zygote is None or not zygote.usable:
            zygote = _zygotes[key] = Zygote(command, environment, patience_s, walls=walls)
        for kept in _keepers:
            kept.add(zygote)
    return zygote


@contextmanager
def kept_zygotes() -> Iterator[None]:
    """Let the zygotes of the block, in any thread, last as long as it: later pools find them."""
    kept: set[Zygote] = set()
    _keepers.append(kept)
    try:
        yield
    finally:
        _keepers[:] = [other for other in _keepers if other is not kept]
