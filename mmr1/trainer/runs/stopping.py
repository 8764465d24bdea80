"""SIGTERM, Ctrl-C and SIGHUP: the current step is finished and saved, within a grace period."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Self


class StoppedError(RuntimeError):
    """The run was stopped by the signal ``signum``."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.signum = signum


class StopSignal:
    """While active, the first SIGTERM, Ctrl-C or SIGHUP only sets ``received``.

    SIGHUP comes when a terminal is closed or an SSH session drops. A run under ``nohup`` ignores
    it, and goes on.

    A second one, or the end of the grace period, raises ``StoppedError`` in the main thread at
    once. The current step is then lost; earlier checkpoints are not.
    """

    def __init__(self, grace_period_s: float) -> None:
        self.received: int | None = None
        self._grace_s = grace_period_s
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        heard = [signal.SIGTERM, signal.SIGINT, signal.SIGALRM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            heard.append(signal.SIGHUP)
        for signum in heard:
            self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.received is None and signum != signal.SIGALRM:
            self.received = signum
            signal.setitimer(signal.ITIMER_REAL, self._grace_s)
            return
        raise StoppedError(
            "stopped before the step was finished; --resume goes on from the last checkpoint",
            self.received or signum,
        )
