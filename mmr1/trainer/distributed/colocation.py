"""Ranks and engines on the same GPUs: whose turn it is, and what changes hands.

A step is: sample, the engines rest, the ranks take back what lies in main memory, learn, and make
room; they send the engines their weights, for which these wake up, and make room again for the
cache, which ``submit`` takes. A resting engine has given up its weights and its cache, so it
always wakes up to weights that the ranks send: the first time too.
"""

from __future__ import annotations

from collections.abc import Callable

from mmr1.trainer.distributed.engine_actor import Engine


class Colocation:
    """Decides whose turn it is. The ranks come first.

    Args:
        call_engines: Calls a method of all engines.
        send: Has the ranks send their weights to the engines.
        make_room: Has the ranks leave memory to the engines; called with whether these have their
            weights.
        take_back: Has the ranks undo it, so far as they need.
    """

    def __init__(
        self,
        call_engines: Callable[..., object],
        send: Callable[[], object],
        make_room: Callable[[bool], object],
        take_back: Callable[[], object],
    ) -> None:
        self._call_engines = call_engines
        self._send = send
        self._make_room = make_room
        self._take_back = take_back
        self._sampling = False
        self._made_room = False

    def learn(self) -> None:
        """Give the GPUs to the ranks, which are about to compute."""
        if self._sampling:
            self._sampling = False
            self._call_engines(Engine.rest)
        self._ranks_have_all()

    def sample(self) -> None:
        """Give the GPUs to the engines, which will sample with the weights that the ranks have."""
        if not self._sampling:
            self._ranks_have_all()  # also after weights that did not arrive
            self._made_room = True
            self._make_room(False)
            self._send()
            self._make_room(True)  # what the transfer took too: a buffer and whole weights
            self._sampling = True

    def _ranks_have_all(self) -> None:
        if self._made_room:
            self._take_back()
            self._made_room = False
