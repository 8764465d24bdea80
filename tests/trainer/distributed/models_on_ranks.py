"""Configurations of every kind of model, and what ranks learn with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmr1.config import Config
from mmr1.data.record import read_records
from mmr1.data.responses import group_of_responses
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.distributed.ray_policy import parts_of_update
from mmr1.trainer.models.critic import critic_experience, first_fit
from mmr1.trainer.models.training_models import TrainingModels
from mmr1.trainer.models.weights import whole
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.types import Experience, Prompt, Reward, ScoredGroup, StepStats
from mmr1.vision.build import family_of, media_cache
from tests.trainer.conversations import conversations, picture

CASES: dict[str, dict[str, Any]] = {
    "critic": {"algorithm": {"name": "ppo", "advantage": {"critic": {"lr": 1e-3}}}},
    "demonstrations": {"algorithm": {"ppo_mini_batch_size": 2}},
    "KL over the vocabulary": {"algorithm": {"kl": {"type": "full", "coef": 0.1}}},
    "KL to adapters off": {
        "algorithm": {"kl": {"type": "full", "coef": 0.1}},
        "model": {"lora": {"rank": 4}, "freeze_vision_tower": True},
    },
    "4 bits": {
        "algorithm": {"kl": {"coef": 0.1}},
        "model": {"lora": {"rank": 4, "load_in_4bit": True}},
    },
    "4 bits, a critic, a frozen tower": {
        "algorithm": {"name": "ppo", "advantage": {"critic": {"lr": 1e-3}}},
        "model": {"lora": {"rank": 4, "load_in_4bit": True}, "freeze_vision_tower": True},
    },
    "conversations": {"algorithm": {"kl": {"coef": 0.1}, "ppo_mini_batch_size": 2}},
    "offloaded": {
        "algorithm": {"kl": {"coef": 0.1, "reference": {"offload": True}}},
        "optimizer": {"offload": True},
    },
}


ZOOMED, OTHER = picture(1), picture(2, 84, 56)


TURNS: dict[str, list[Any]] = {
    "a picture for both": [[4, [3, ZOOMED, 2], 5], [6, [1, ZOOMED, 2], 3]],
    "text": [[4, [5], 3], [2, [3], 4, [6], 5]],
    "several turns": [[3, [2, ZOOMED, 2], 4, [1, OTHER, 1], 2, [3], 6], [5, [4], 2]],
    "another picture": [[3, [2, picture(3), 4], 6], [4]],
}


def config_of(case: str, tiny_model: Path, out: Path) -> Config:
    tree: dict[str, dict[str, Any]] = {
        "model": {"path": str(tiny_model), "dtype": "float32"},
        "data": {"num_workers": 0, "train_batch_size": 4},
        "rollout": {"engine": "hf", "n": 2},
        "optimizer": {"lr": 1e-3, "scheduler": {"type": "constant", "warmup_steps": 0}},
        "trainer": {"max_steps": 3, "output_dir": str(out), "max_tokens_per_gpu": 60},
    }
    for name, keys in CASES[case].items():
        tree[name] = {**tree.get(name, {}), **keys}
    return Config.model_validate(tree)


def batch_of(case: str, config: Config, models: TrainingModels, mixed: Path) -> Experience:
    """Four prompts, of text, one image, two images and a video, with two completions each.

    Of conversations: some with pictures of tools, so that a rank may have none. A reference behind
    a server sees no videos.
    """
    family = family_of(config)
    if case == "conversations":
        cache = media_cache(family, config)
        shown = [[], [ZOOMED], [picture(7)], []]
        groups = [
            conversations(family, cache, turns, pictures, seed)
            for seed, (turns, pictures) in enumerate(zip(TURNS.values(), shown, strict=True))
        ]
    else:
        groups = [
            group_of_responses(family, family.render_prompt(sample), ["it is one digit", "no"])
            for sample in read_records(mixed)[: 3 if config.algorithm.reference_is_served else 4]
        ]
    scored = [
        ScoredGroup(g, (Reward(0.25 * i), Reward(1.0 - 0.5 * i))) for i, g in enumerate(groups)
    ]
    batch = build_experience(
        scored,
        build_algorithm(config.algorithm),
        Models(models.policy, models.reference, critic=models.critic),
    )
    if case != "demonstrations":
        return batch
    # One for the first mini-batch, so that a rank has none, and two for the second.
    told = [replace(g, completions=g.completions[:1]) for g in groups[:3]]
    coefficients = replace(batch.coefficients, ptx=0.5)
    own = zip(batch.mini_batches, ((told[0],), tuple(told[1:])), strict=True)
    mini_batches = tuple(replace(m, demonstrations=d) for m, d in own)
    return replace(batch, mini_batches=mini_batches, coefficients=coefficients)


def cost(prompt: Prompt) -> float:
    return len(prompt.token_ids)


def learnt(
    case: str,
    config: Config,
    models: TrainingModels,
    mixed: Path,
    ranks: int = 1,
    rank: int = 0,
    sample: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """What two updates log, and the weights after them; ``sample`` is called before each."""
    stats: list[StepStats] = []
    for number in range(2):
        sample()
        batch = batch_of(case, config, models, mixed)
        if models.critic is not None:
            line = first_fit(batch) if number == 0 else None
            own = parts_of_update(critic_experience(batch, None), cost, ranks)[rank]
            stats.append(models.critic.learn(own, line))
        stats.append(models.policy.update(parts_of_update(batch, cost, ranks)[rank]))
    trained = [models.model]
    if models.critic is not None:
        trained.append(models.critic._scalar_model.model)
    weights = [whole(p).clone() for m in trained for p in m.parameters() if p.requires_grad]
    return {"stats": stats, "weights": weights}
