"""Make rankings for a reward model from a run's rollouts, for iterative GRPO (arXiv 2402.03300).

    python scripts/recipes/rollout_rankings.py runs/grpo data/round_1.jsonl [--since 100]
    mmr1 rm rm.yaml model.path=runs/rm/checkpoints/step_000200 \\
        'data.train={data/round_1.jsonl: 0.9, data/round_0.jsonl: 0.1}'   # 10% replay

A ranking holds one completion per reward value of a group, the best first. Groups whose rewards are
all equal are skipped. The rewards should come from a verifier, not from the reward model itself.
OUTPUT must be in the folder of the records or above it, because media paths are relative to it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmr1.config.file import load_config
from mmr1.data.record import write_records
from mmr1.data.sources import load_mixture
from mmr1.types import Sample


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="output directory of a run")
    parser.add_argument("output", type=Path, help="JSON Lines file to write")
    parser.add_argument("--since", type=int, default=1, help="first step to use")
    args = parser.parse_args(arguments)
    # Without the template: a run that reads the new records applies its own.
    data = load_config(args.run / "config.yaml").data.model_copy(update={"prompt_template": None})
    sources, _ = load_mixture(data)
    samples = {sample.id: sample for source in sources.values() for sample in source}
    records = list(rankings(args.run, args.since, samples))
    write_records(args.output, records)
    print(f"{args.output}: {len(records)} rankings")


def rankings(run: Path, since: int, samples: dict[str, Sample]) -> Iterator[Sample]:
    """The sample of each group whose rewards differ, with its completions as ``ranking``."""
    for path in sorted((run / "rollouts").glob("step_*.jsonl")):
        # Not str.splitlines: it sees line ends inside of texts, such as U+2028.
        for row in map(json.loads, path.read_text().split("\n")[:-1]):
            best_first = ranked(row["completions"])
            if row["step"] >= since and len(best_first) > 1:
                sample = samples[row["id"]]
                meta = {**sample.meta, "ranking": best_first}
                yield replace(sample, id=f"{sample.id}-{row['step']}", meta=meta)


def ranked(completions: list[dict[str, Any]]) -> list[str]:
    """One text per reward value, the highest reward first; no text twice."""
    by_reward: dict[float, str] = {}
    for completion in completions:
        text, reward = completion["text"], completion["reward"]
        if reward is not None and text and text not in by_reward.values():
            by_reward.setdefault(reward, text)
    return [by_reward[reward] for reward in sorted(by_reward, reverse=True)]


if __name__ == "__main__":
    main()
