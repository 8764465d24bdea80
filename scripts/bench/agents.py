"""The cost of the server behind agent programs, beside the engine.

    python scripts/bench/agents.py

256 episodes, 16 at once, each of four requests with 256 sampled tokens, by a scripted engine whose
tokens cost nothing. The programs are processes of their own. CPU time of this process, and of the
server's, for a request, and for a sampled token; the smallest of the repeats.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from mmr1.config import SamplingConfig
from mmr1.rollout.protocol import Finished, Request, complete
from mmr1.types import Completion, Message, Sample, TextPart
from mmr1.vision.families.loading import load_family
from mmr1.vision.families.tiny import new_model
from mmr1.vision.prepare import MediaCache
from mmr1_contrib.agents.engine import AgentEngine
from mmr1_contrib.agents.sections import AgentConfig

PROGRAM = Path(__file__).resolve().with_name("agent_program.py")
TURNS = 4
"""Requests of the program."""


class Scripted:
    """An ``Engine`` that answers at once, with random tokens."""

    load = probe = None

    def __init__(self, family: Any, tokens: int) -> None:
        rng = np.random.default_rng(0)
        self._ids = [rng.integers(30, 600, tokens) for _ in range(64)]
        self._texts = [family.tokenizer.decode(ids, skip_special_tokens=True) for ids in self._ids]
        self._logprobs = np.full(tokens, -0.5, np.float32)
        self._tickets = count()
        self._waiting: dict[int, Request] = {}

    def submit(self, requests: Sequence[Request]) -> list[int]:
        new = {next(self._tickets): request for request in requests}
        self._waiting |= new
        return list(new)

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        waiting, self._waiting = self._waiting, {}
        return [
            Finished(ticket, index, self._completion(seed % 64))
            for ticket, request in waiting.items()
            for index, seed in enumerate(request.seeds)
        ]

    def cancel(self) -> int:
        self._waiting = {}
        return 0

    def _completion(self, place: int) -> Completion:
        return Completion(self._ids[place], self._logprobs, self._texts[place], False, 0)

    def close(self) -> None:
        """Do nothing: it holds no resources."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--workers", type=int, default=16, help="programs side by side")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mmr1-bench-"))
    new_model(folder / "model")
    family = load_family(str(folder / "model"))
    scripted = Scripted(family, args.tokens)
    config = AgentConfig(
        use=f"{PROGRAM}:run",
        max_tokens_per_turn=args.tokens,
        workers=args.workers,
    )
    media = MediaCache(family.prepare_media)
    engine = AgentEngine(scripted, config, family, media, False, 10**6)
    sampling = SamplingConfig(max_tokens=args.tokens)
    record = Sample("0", (Message("user", (TextPart("What is in the picture?"),)),))
    request = Request(family.render_prompt(record), tuple(range(args.episodes)), sampling)
    children = psutil.Process().children()
    (front,) = [child for child in children if "mmr1_contrib.agents.front" in child.cmdline()]
    seconds = []
    for _ in range(args.repeats):
        begin = time.process_time()
        (group,) = complete(engine, [request])
        seconds.append(time.process_time() - begin)
        for each in group.completions:
            assert each.failure is None, each.failure
            assert (each.turns, len(each.sequences)) == (TURNS, 1), "a conversation each"
    of_server = sum(front.cpu_times()[:2]) / args.repeats
    engine.close()
    requests = args.episodes * TURNS
    print(
        json.dumps(
            {
                "episodes": args.episodes,
                "requests": requests,
                "tokens": requests * args.tokens,
                "cpu_ms_per_request": round(1e3 * min(seconds) / requests, 2),
                "server_ms_per_request": round(1e3 * of_server / requests, 2),
                "cpu_us_per_token": round(1e6 * min(seconds) / requests / args.tokens, 1),
                "repeats_ms": [round(1e3 * s / requests, 2) for s in seconds],
            }
        )
    )


if __name__ == "__main__":
    main()
