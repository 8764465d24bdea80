"""The cost of the server behind agent programs, beside the engine.

    python scripts/bench/agents.py

256 episodes at once, each of four requests with 256 sampled tokens, by a scripted engine whose
tokens cost nothing. The clients are a process of their own. CPU time of the server's process, for
a request and for a sampled token; the smallest of the repeats.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from mmr1.config import AgentConfig, SamplingConfig
from mmr1.rollout.agent_engine import AgentEngine
from mmr1.rollout.engine import PreparedRequest
from mmr1.types import Completion
from mmr1.vision.families.loading import load_family
from mmr1.vision.families.tiny import new_model
from mmr1.vision.prepare import MediaCache

TURNS = 4


class Scripted:
    """A ``RolloutEngine`` and ``TurnEngine`` that answers at once, with random tokens."""

    load_weights = probe = generate = None

    def __init__(self, family: Any, tokens: int) -> None:
        rng = np.random.default_rng(0)
        self._ids = [rng.integers(30, 600, tokens) for _ in range(64)]
        self._texts = [family.tokenizer.decode(ids, skip_special_tokens=True) for ids in self._ids]
        self._logprobs = np.full(tokens, -0.5, np.float32)

    def advance(
        self, requests: Mapping[int, PreparedRequest], sampling: SamplingConfig
    ) -> dict[int, Completion]:
        places = {number: prepared.request.seed % 64 for number, prepared in requests.items()}
        return {
            number: Completion(self._ids[p], self._logprobs, self._texts[p], False, 0)
            for number, p in places.items()
        }

    def abandon(self) -> None:
        """Do nothing: no turn is under way."""

    def close(self) -> None:
        """Do nothing: it holds no resources."""


def clients(base_url: str, episodes: int, repeat: int) -> None:
    async def episode(client: httpx.AsyncClient, number: int) -> None:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": "Be brief. " * 20},
            {"role": "user", "content": "What is in the picture? " * 10},
        ]
        headers = {"Authorization": f"Bearer {repeat}-{number}"}
        for _ in range(TURNS):
            body = {"model": "policy", "messages": messages}
            answer = await client.post(f"{base_url}/chat/completions", json=body, headers=headers)
            messages.append(answer.json()["choices"][0]["message"])
            messages.append({"role": "user", "content": "Go on, please. " * 8})

    async def main() -> None:
        limits = httpx.Limits(max_connections=episodes)
        async with httpx.AsyncClient(timeout=None, limits=limits) as client:
            await asyncio.gather(*(episode(client, number) for number in range(episodes)))

    asyncio.run(main())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mmr1-bench-"))
    new_model(folder / "model")
    family = load_family(str(folder / "model"))
    scripted = Scripted(family, args.tokens)
    config = AgentConfig(use="bench", max_tokens_per_turn=args.tokens)
    engine = AgentEngine(
        scripted, scripted, config, family, MediaCache(family.prepare_media), False, 10**6, True
    )
    sampling = SamplingConfig(max_tokens=args.tokens)
    threading.Thread(target=engine.serve, args=(sampling,), daemon=True).start()
    seconds = []
    for repeat in range(args.repeats):
        begin = time.process_time()
        process = get_context("spawn").Process(
            target=clients, args=(engine.server.base_url, args.episodes, repeat)
        )
        process.start()
        process.join()
        assert process.exitcode == 0
        seconds.append(time.process_time() - begin)
    episodes = engine.conversations()
    assert set(episodes.values()) == {(TURNS, 1)}, "each episode is one conversation"
    requests = args.episodes * TURNS
    print(
        json.dumps(
            {
                "episodes": args.episodes,
                "requests": requests,
                "tokens": requests * args.tokens,
                "cpu_ms_per_request": round(1e3 * min(seconds) / requests, 2),
                "cpu_us_per_token": round(1e6 * min(seconds) / requests / args.tokens, 1),
                "repeats_ms": [round(1e3 * s / requests, 2) for s in seconds],
            }
        )
    )


if __name__ == "__main__":
    main()
