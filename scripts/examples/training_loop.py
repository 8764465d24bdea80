"""Write your own training loop: a few steps of GRPO on a CPU.

    python scripts/examples/training_loop.py RECORDS.jsonl [MODEL]

Without MODEL, a random model of 0.7M parameters is created. It learns nothing in three steps.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean
from tempfile import mkdtemp

from mmr1 import Config, parts


def letters(completion: str) -> float:
    """The share of letters: an untrained model already differs in it."""
    return sum(map(str.isalpha, completion)) / max(1, len(completion))


def main(records: Path, model_path: Path, steps: int = 3) -> None:
    config = Config(
        model={"path": str(model_path), "dtype": "float32"},
        rewards={"letters": "python", "format": 0.5},
        rollout={"engine": "hf", "max_response_length": 16},
        trainer={"max_steps": steps},
    )
    family = parts.family_of(config)
    media, render = parts.media_cache(family, config), parts.renderer(family, config)
    models = parts.build_training_models(config, family, media)
    algorithm, policy = parts.build_algorithm(config.algorithm), models.policy
    engine = parts.HfEngine(models.model, family, media, shares_weights=True)
    sampler = parts.Sampler(parts.read_records(records), config.seed)
    own = {"letters": parts.CallableReward("letters", letters)}
    with parts.build_composite_reward(config.rewards, config.scoring, own) as functions:
        rewards = parts.RewardManager(functions, media, max_invalid_fraction=0.2)
        for step in range(1, steps + 1):
            prompts = [render(sample) for sample in sampler.next(4)]
            requests = parts.requests_for(prompts, 8, config.rollout.sampling, config.seed, step)
            scored = rewards.score(parts.complete(engine, requests))
            batch = parts.build_experience(
                scored, algorithm, parts.Models(policy, models.reference)
            )
            stats = policy.update(batch)
            engine.load(policy.weights(), policy.version)
            reward = fmean(r.value for group in scored for r in group.rewards if r.valid)
            print(f"step {step}  reward {reward:.3f}  loss {stats['loss']:.1e}", end="  ")
            print(f"grad_norm {stats['grad_norm']:.3f}  lr {stats['lr']:.1e}")


if __name__ == "__main__":
    path = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(mkdtemp()) / "model"
    if len(sys.argv) == 2:
        parts.new_model(path)
    main(Path(sys.argv[1]), path)
