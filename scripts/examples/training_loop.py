"""Write your own training loop: a few steps of GRPO on a CPU.

    python scripts/examples/training_loop.py RECORDS.jsonl [MODEL]

Without MODEL, a random model of 0.7M parameters is created. It learns nothing in three steps.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import mkdtemp

from mmr1.config import Config
from mmr1.data.record import read_records
from mmr1.data.rendering import renderer
from mmr1.data.sampler import Sampler
from mmr1.rewards import build_composite_reward
from mmr1.rollout.engine import Request, request_seed
from mmr1.rollout.hf import HfEngine
from mmr1.trainer.algorithms import build_algorithm
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.loading import build_packed_model, load_model
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.trainer.sampling.scoring import RewardManager
from mmr1.vision.build import family_of, media_cache
from mmr1.vision.families.tiny import new_model


def main(records: Path, model_path: Path, steps: int = 3) -> None:
    config = Config(
        model={"path": str(model_path), "dtype": "float32"},
        rewards={"functions": {"exact": {}, "format": {"weight": 0.5}}},
        rollout={"max_response_length": 16},
    )
    model, family = load_model(config.model), family_of(config)
    media, render = media_cache(family, config), renderer(family, config)
    algorithm = build_algorithm(config.algorithm)
    packed = build_packed_model(config, model, ModelInputs(family, media), temperature=1.0)
    policy = LocalPolicy(packed, algorithm, Optimizer(model, config.optimizer, steps), passes=1)
    rollout, sampler = HfEngine(model, family, media), Sampler({"own": read_records(records)}, 0)
    with build_composite_reward(config.rewards) as scorer:
        rewards = RewardManager(scorer, media, max_invalid_fraction=0.2)
        for step in range(1, steps + 1):
            prompts = [render(sample) for sample in sampler.next(4)]
            requests = [Request(p, 8, request_seed(0, step, p.sample.id)) for p in prompts]
            scored = rewards.score(rollout.generate(requests, config.rollout.sampling))
            batch = build_experience(scored, algorithm, config.algorithm, Models(policy))
            stats = policy.update(batch)
            rollout.load_weights(policy.weights(), policy.version)
            print(step, {name: round(value, 4) for name, value in stats.items()})


if __name__ == "__main__":
    path = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(mkdtemp()) / "model"
    if len(sys.argv) == 2:
        new_model(path)
    main(Path(sys.argv[1]), path)
