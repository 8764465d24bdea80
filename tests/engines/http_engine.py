"""A rollout engine of one's own: a client of ``http_server.py``."""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from safetensors.torch import save_file

from mmr1.engines import Abilities, engine
from mmr1.rollout.engines import EngineSetting
from mmr1.rollout.protocol import Finished, Probe, Request
from mmr1.types import Completion, Prompt


class HttpEngine:
    def __init__(self, setting: EngineSetting) -> None:
        self._family = setting.family
        self._version = 0
        self._tickets = count()
        self._waiting: dict[int, Request] = {}
        self._folder = tempfile.TemporaryDirectory()
        server = Path(__file__).parent / "http_server.py"
        command = [sys.executable, str(server), setting.config.model.path]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._server = subprocess.Popen(command, text=True, **pipes)
        port = self._server.stdout.readline().strip()
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)

    def submit(self, requests: Sequence[Request]) -> list[int]:
        new = {next(self._tickets): request for request in requests}
        self._waiting |= new
        return list(new)

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        waiting, self._waiting = self._waiting, {}
        return [
            Finished(ticket, index, completion)
            for ticket, request in waiting.items()
            for index, completion in enumerate(self._completions(request))
        ]

    def cancel(self) -> int:
        self._waiting = {}
        return 0

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        file = Path(self._folder.name) / "weights.safetensors"
        save_file({name: tensor.detach().cpu().clone() for name, tensor in weights.items()}, file)
        self._post("load", {"file": str(file)})
        self._version = version

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        answers = [self._post("probe", _read(prompt)) for prompt in prompts]
        return [Probe(tuple(a["ids"]), tuple(map(tuple, a["grids"]))) for a in answers]

    def close(self) -> None:
        self._server.kill()
        self._server.wait()
        self._folder.cleanup()

    def _completions(self, request: Request) -> tuple[Completion, ...]:
        body = _read(request.prompt) | {
            "seeds": request.seeds,
            "temperature": request.sampling.temperature,
            "max_tokens": request.limit,
            "stop_ids": list(self._family.stop_ids),
            "forbidden_ids": list(self._family.forbidden_ids),
        }
        return tuple(
            Completion(
                token_ids=np.array(answer["ids"], dtype=np.int64),
                logprobs=np.array(answer["logprobs"], dtype=np.float32),
                text=self._family.chat.completion_text(answer["ids"]),
                truncated=answer["ids"][-1] not in self._family.stop_ids,
                policy_version=self._version,
            )
            for answer in self._post("generate", body)
        )

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._http.post(path, json=body).raise_for_status().json()


def _read(prompt: Prompt) -> dict[str, Any]:
    images = [base64.b64encode(medium.read()).decode() for medium in prompt.media]
    return {"ids": list(prompt.token_ids), "images": images}


class RestingHttpEngine(HttpEngine):
    """One that says when it is asked to sample without weights."""

    _rests = False

    def rest(self) -> None:
        self._rests = True

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self._rests = False
        super().load(weights, version)

    def submit(self, requests: Sequence[Request]) -> list[int]:
        assert not self._rests
        return super().submit(requests)


@engine("resting", abilities=Abilities(rests=True))
def resting(setting: EngineSetting) -> RestingHttpEngine:
    """A server that can be told to rest."""
    return RestingHttpEngine(setting)
