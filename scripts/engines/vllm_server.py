"""A rollout engine behind vLLM's own HTTP server, which may run on another machine.

Start the server in development mode, so that it takes new weights:

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --dtype float32
        --logprobs-mode processed_logprobs

Then set ``rollout.engine={type: "scripts/engines/vllm_server.py:VllmServer", url:
"http://127.0.0.1:8000", folder: /shared}``. Weights go through the folder, which both must
see. In development mode whoever reaches the port can call functions of the server: keep it closed.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import torch
from safetensors.torch import save_file

from mmr1 import Completion, Finished, Probe, Request
from mmr1.rollout.engines import EngineSetting
from mmr1.types import Prompt

AT_ONCE = 256
"""Requests under way: the server batches them."""


class VllmServer:
    """A client of vLLM's ``/inference/v1/generate``, which takes and returns token ids."""

    def __init__(self, setting: EngineSetting, url: str, folder: str | None = None) -> None:
        self.family, self.media, self.version = setting.family, setting.media, 0
        self.http = httpx.Client(base_url=url, timeout=3600)
        self.folder = TemporaryDirectory(dir=folder)
        self.threads, self.tickets = ThreadPoolExecutor(AT_ONCE), count()
        self.under_way: dict[Future[Completion], tuple[int, int]] = {}

    def submit(self, requests: Sequence[Request]) -> list[int]:
        tickets = [next(self.tickets) for _ in requests]
        for ticket, request in zip(tickets, requests, strict=True):
            for index, seed in enumerate(request.seeds):
                answer = self.threads.submit(self.sample, request, seed)
                self.under_way[answer] = ticket, index
        return tickets

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        ended, _ = wait(self.under_way, wait_s, FIRST_COMPLETED)
        return [Finished(*self.under_way.pop(answer), answer.result()) for answer in ended]

    def cancel(self) -> int:
        """Forget what is under way; the server samples it to its end."""
        self.under_way = {}
        return 0

    def sample(self, request: Request, seed: int) -> Completion:
        sampling = request.sampling
        params = {
            "seed": seed,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "stop": list(sampling.stop),
            "include_stop_str_in_output": True,
            "max_tokens": request.limit,
            "stop_token_ids": list(self.family.stop_ids),
            "logit_bias": {str(token): -100.0 for token in self.family.forbidden_ids},
            "logprobs": 0,  # that of the sampled token alone
        }
        body = read(request.prompt) | {"sampling_params": params}
        answer = self.post("/inference/v1/generate", body)
        return self.completion(answer["choices"][0])

    def completion(self, choice: Mapping[str, Any]) -> Completion:
        tokens = choice["token_ids"]
        logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
        return Completion(
            token_ids=np.array(tokens),
            logprobs=np.array(logprobs, dtype=np.float32),
            text=self.family.chat.completion_text(tokens),
            truncated=choice["finish_reason"] == "length",
            policy_version=self.version,
        )

    def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        folder = Path(self.folder.name) / str(version)
        folder.mkdir(exist_ok=True)
        named = {name: weight.detach().cpu().clone() for name, weight in weights.items()}
        save_file(named, folder / "model.safetensors")
        arguments = {"weights_path": str(folder)}
        self.post("/collective_rpc", {"method": "reload_weights", "kwargs": arguments})
        if not self.post("/reset_prefix_cache", {})["success"]:
            raise RuntimeError("the vLLM server did not drop keys and values of the old weights")
        self.post("/reset_encoder_cache", {})
        (folder / "model.safetensors").unlink()
        self.version = version

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        """How the server reads prompts. It tells no grids: their products are in the token ids."""
        once = {"sampling_params": {"max_tokens": 1}, "return_token_ids": True}
        answers = [self.post("/inference/v1/generate", read(prompt) | once) for prompt in prompts]
        grids = [tuple(self.media[m].grid for m in prompt.media) for prompt in prompts]
        read_as = [tuple(answer["prompt_token_ids"]) for answer in answers]
        return [Probe(ids, of) for ids, of in zip(read_as, grids, strict=True)]

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)
        self.http.close()
        self.folder.cleanup()

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        answer = self.http.post(path, json=body)
        if answer.is_error:
            raise RuntimeError(f"{path} of the vLLM server: {answer.text[:500]}")
        return answer.json() if answer.content else None


def read(prompt: Prompt) -> dict[str, Any]:
    """One placeholder for each picture; the server expands it."""
    pictures = [base64.b64encode(medium.read()).decode() for medium in prompt.media]
    parts = [{"type": "image_url", "url": f"data:image/png;base64,{p}"} for p in pictures]
    return {"token_ids": list(prompt.token_ids), "content_parts": parts}
