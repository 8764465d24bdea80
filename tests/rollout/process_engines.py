"""Engines that are built in a process of their own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import torch

from mmr1.rollout.protocol import Finished, Probe, Request
from mmr1.types import Completion, MediaRef, Prompt
from mmr1.vision.prepare import Medium


def no_media(ref: MediaRef) -> Medium:
    raise ValueError("no picture is prepared")


class Engine:
    """Answers with the weight it has; a prompt's text tells it to die, to hang or to fail, once."""

    is_full = False

    def __init__(self, media: object, folder: str) -> None:
        self._media, self._folder = media, Path(folder)
        self._weight = -1.0
        self._version = 0
        self._tickets = count()
        self._waiting: dict[int, str] = {}

    def submit(self, requests: Sequence[Request]) -> list[int]:
        new = {next(self._tickets): request.prompt.text for request in requests}
        self._waiting |= new
        return list(new)

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        waiting, self._waiting = self._waiting, {}
        return [Finished(ticket, 0, self._complete(text)) for ticket, text in waiting.items()]

    def cancel(self) -> int:
        self._waiting = {}
        return 0

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self._weight, self._version = float(weights["w"]), version

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        return []

    def close(self) -> None: ...

    def _complete(self, text: str) -> Completion:
        (self._folder / f"generating {os.getpid()}").touch()
        times = len(list(self._folder.glob("generating *")))
        if text == "die" and times == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if text == "hang" and times == 1:
            time.sleep(600)
        if text == "always die":
            os._exit(3)
        if text == "fail":
            raise KeyError("a bug of ours")
        none = np.zeros(0, dtype=np.float32)
        return Completion(none.astype(np.int64), none, f"{self._weight}", False, self._version)


def build(media: object, folder: str) -> Engine:
    return Engine(media, folder)
