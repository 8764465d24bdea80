"""Ranks and engines on the same GPUs: whose turn it is, and what changes hands.

A step is: sample, the engines sleep, learn, the ranks free what they do not need, the engines wake
up for their weights, the ranks send them and free what that took, the engines wake up for their
cache. A sleeping engine has given up its weights and its cache, so it always wakes up to weights
that the ranks send: the first time too.
"""

from __future__ import annotations

from collections.abc import Callable


class Colocation:
    """Whose turn it is; at first that of the ranks.

    Args:
        call_engines: Calls a method of all engines: ``sleep``, or ``wake_up`` with what for.
        send: Has the ranks send their weights to the engines.
        free: Has the ranks free memory that they hold without need.
    """

    def __init__(
        self,
        call_engines: Callable[..., object],
        send: Callable[[], object],
        free: Callable[[], object],
    ) -> None:
        self._call_engines = call_engines
        self._send = send
        self._free = free
        self._sampling = False

    def learn(self) -> None:
        """The ranks are about to compute."""
        if self._sampling:
            self._sampling = False
            self._call_engines("sleep")

    def sample(self) -> None:
        """The engines are about to sample, with the weights that the ranks have."""
        if not self._sampling:
            self._free()
            self._call_engines("wake_up", "weights")
            self._send()
            self._free()  # what the transfer took of the cache's room: a buffer and whole weights
            self._call_engines("wake_up", "kv_cache")
            self._sampling = True
