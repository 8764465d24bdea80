"""CPU seconds and memory of the process that runs the loop, in a step.

    python scripts/bench/driver.py --completions 65536 --tokens 500 --ranks 683

Engines and ranks are left out: completions are made up, and what ranks would be sent is pickled and
thrown away. A completion is words and an answer in the usual format; half of them are right. CPU
seconds are those of this process and of the verifier's. The first step touches the memory that the
steps after it use again.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager

import common
import numpy as np

from mmr1.config import Config
from mmr1.rewards import build_composite_reward
from mmr1.runtime import heap_frozen, set_up_torch
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.distributed.ray_policy import parts_of_update
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.types import Completion, MediaRef, Message, Prompt, RolloutGroup, Sample, TextPart
from mmr1.vision.prepare import MediaCache, Medium

PROMPT_TOKENS = 1124
VOCABULARY = 150_000
STEPS = 2


def main() -> None:
    parser = common.parser(__doc__ or "")
    parser.add_argument("--completions", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=500, help="of a completion")
    parser.add_argument("--n", type=int, default=8, help="completions of a prompt")
    parser.add_argument("--ranks", type=int, default=64)
    arguments = parser.parse_args()
    config = Config.model_validate(
        {
            "model": {"path": "none"},
            "rollout": {"n": arguments.n},
            "rewards": {"format": {}, "math": {}},
        }
    )
    set_up_torch(seed=0, threads=1)
    with heap_frozen():
        groups = made_up(arguments.completions // arguments.n, arguments.n, arguments.tokens)
        made = common.peak_rss_mib()
        rows = [step(groups, config, arguments.ranks) for _ in range(STEPS)]
    known = {"completions": arguments.completions, "completions, MiB": f"{made:.0f}"}
    common.table([{"step": number, **known, **row} for number, row in enumerate(rows, 1)])


def step(groups: list[RolloutGroup], config: Config, ranks: int) -> dict[str, str]:
    algorithm = build_algorithm(config.algorithm)
    seconds: dict[str, float] = {}
    with (
        counted(seconds, "rewards"),
        build_composite_reward(config.rewards, config.scoring) as rewards,
    ):
        scored = RewardManager(rewards, MediaCache(not_there), 1.0).score(groups)
    with counted(seconds, "experience"):
        # Without a reference: its log-probs come from the ranks.
        batch = build_experience(scored, algorithm, Models(None))  # type: ignore[arg-type]
    with counted(seconds, "shares"):
        parts = parts_of_update(batch, lambda prompt: len(prompt.token_ids), ranks)
    with counted(seconds, "pickled"):
        sent = sum(len(pickle.dumps(part, protocol=5)) for part in parts)
    return {
        **{name: f"{value:.1f}" for name, value in seconds.items()},
        "sent, MiB": f"{sent / 2**20:.0f}",
        "peak, MiB": f"{common.peak_rss_mib():.0f}",
    }


def not_there(medium: MediaRef) -> Medium:
    raise ValueError(f"the prompts have no media, and {medium} was asked for")


def made_up(prompts: int, n: int, tokens: int) -> list[RolloutGroup]:
    rng = np.random.default_rng(0)
    words = " ".join(f"word{i}" for i in range(tokens // 3))
    groups = []
    for number in range(prompts):
        text = TextPart(f"What is {number} and 1?")
        gold, wrong = str(number + 1), str(number + 2)
        sample = Sample(str(number), (Message("user", (text,)),), gold)
        ids = tuple(rng.integers(VOCABULARY, size=PROMPT_TOKENS).tolist())
        completions = []
        for index in range(n):
            completions.append(
                Completion(
                    rng.integers(VOCABULARY, size=tokens),
                    rng.normal(size=tokens).astype(np.float32),
                    f"<think>{words}</think><answer>{(gold, wrong)[index % 2]}</answer>",
                    False,
                    0,
                )
            )
        groups.append(RolloutGroup(Prompt(sample, text.text, ids), tuple(completions)))
    return groups


@contextmanager
def counted(seconds: dict[str, float], name: str) -> Iterator[None]:
    """CPU seconds of this process and of children that have ended."""
    before = sum(os.times()[:4])
    yield
    seconds[f"{name}, CPU s"] = sum(os.times()[:4]) - before


if __name__ == "__main__":
    main()
