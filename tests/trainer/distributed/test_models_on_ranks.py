"""The models of RL on two ranks, without Ray, against one process: what they log and become."""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from mmr1.config import Config, ModelConfig, OptimizerConfig
from mmr1.data.record import read_records
from mmr1.data.responses import group_of_responses
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.distributed import fsdp
from mmr1.trainer.distributed.all_ranks import cost_of_group
from mmr1.trainer.distributed.cluster import prompt_cost
from mmr1.trainer.distributed.rank_actor import CpuOffload, storages
from mmr1.trainer.distributed.ray_policy import parts_of_update
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.models.critic import first_fit, of_critic
from mmr1.trainer.models.loading import vision_token_cost
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.training_models import TrainingModels, build_training_models
from mmr1.trainer.models.weights import whole
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.types import Experience, Prompt, Reward, ScoredGroup, StepStats
from mmr1.vision.build import family_of, media_cache
from tests.trainer.conversations import conversations, picture
from tests.trainer.distributed.gloo import on_two_ranks
from tests.trainer.tiny_groups import group

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


IN_4_BITS = importlib.util.find_spec("bitsandbytes") is not None


def needs_bitsandbytes(case: str) -> Any:
    skip = pytest.mark.skipif(not IN_4_BITS, reason="bitsandbytes is not installed")
    return pytest.param(case, marks=skip)


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
            own = parts_of_update(of_critic(batch, None), cost, ranks)[rank]
            stats.append(models.critic.learn(own, line))
        stats.append(models.policy.update(parts_of_update(batch, cost, ranks)[rank]))
    trained = [models.model]
    if models.critic is not None:
        trained.append(models.critic._scalar_model.model)
    weights = [whole(p).clone() for m in trained for p in m.parameters() if p.requires_grad]
    return {"stats": stats, "weights": weights}


def _learn(rank: int, mesh: Any, tiny_model: Path, mixed: Path, out: Path) -> None:
    for case in CASES:
        if "4 bits" in case and not IN_4_BITS:
            continue
        config = config_of(case, tiny_model, out)
        family = family_of(config)
        torch.manual_seed(0)  # adapters begin at random
        loaded: list[Any] = []

        def load(*args: Any, loaded: list[Any] = loaded, **options: Any) -> Any:
            model = fsdp.load(*args, mesh=mesh, **options)
            loaded.append(model)
            return model

        models = build_training_models(
            config,
            family,
            media_cache(family, config),
            fsdp.DistributedProcessGroup(rank, 2),
            load,
        )
        assert loaded[0] is models.model
        if case == "offloaded":
            shards = [p for p in models.reference._own.model.parameters() if isinstance(p, DTensor)]
            assert {p.to_local().device.type for p in shards} == {"cpu"}
        sample = partial(_offload, models, loaded)
        found = learnt(case, config, models, mixed, 2, rank, sample)
        if rank == 0:
            torch.save(found, out / f"{case}.pt")


def _offload(models: TrainingModels, loaded: list[Any]) -> None:
    """As ``rollout.engine.offload_trainer`` does: nothing is left here while engines sample."""
    of_models = [[*model.parameters(), *model.buffers()] for model in loaded]
    of_optimizers = [t for own in models.optimizers for t in own.tensors().values()]
    every = storages([*chain(*of_models), *of_optimizers])
    every = {key: s for key, s in every.items() if s.resizable()}  # no mapping of a file
    sizes = [storage.nbytes() for storage in every.values()]
    offload = CpuOffload(loaded, models.optimizers)
    offload.before_sending()
    sent = storages(of_models[0])
    assert all((s.nbytes() > 0) == (key in sent) for key, s in every.items())
    deque(models.policy.engine_weights().values(), maxlen=0)
    offload.after_sending()
    assert sum(sizes) > 0
    assert not any(storage.nbytes() for storage in every.values())
    offload.back()
    assert [storage.nbytes() for storage in every.values()] == sizes


@pytest.fixture(scope="module")
def on_ranks(tiny_model, mixed, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("models")
    on_two_ranks(_learn, tiny_model, mixed, out)
    return out


@pytest.mark.parametrize(
    "case", [needs_bitsandbytes(case) if "4 bits" in case else case for case in CASES]
)
def test_two_ranks_learn_what_one_process_learns(case, on_ranks, tiny_model, mixed, tmp_path):
    config = config_of(case, tiny_model, tmp_path)
    family = family_of(config)
    torch.manual_seed(0)
    models = build_training_models(config, family, media_cache(family, config))
    alone = learnt(case, config, models, mixed)
    ranks = torch.load(on_ranks / f"{case}.pt")
    for ours, theirs in zip(ranks["stats"], alone["stats"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5, rel=1e-5)
    pairs = zip(ranks["weights"], alone["weights"], strict=True)
    apart = torch.cat([(ours - theirs).abs().flatten() for ours, theirs in pairs])
    assert (apart > 1e-5).float().mean() < 1e-3  # where a gradient is no more than rounding


def test_a_tools_picture_costs_the_tower_once_for_a_group(tiny_model, tmp_path):
    config = config_of("conversations", tiny_model, tmp_path)
    family = family_of(config)
    cache, of_prompt = media_cache(family, config), prompt_cost(config)
    turns = [[4, [3, ZOOMED, 2], 5], [6, [1, ZOOMED, 2], 3], [5]]
    for asked, encoded in (([], 1), ([ZOOMED], 0)):
        group = conversations(family, cache, turns, asked, 0)
        tokens = sum(len(c.token_ids) for c in group.completions)
        of_tools = cost_of_group(of_prompt, group.prompt, group.completions) - tokens
        vision = vision_token_cost(config) * cache[ZOOMED].tokens
        assert of_tools == pytest.approx(of_prompt(group.prompt) + encoded * vision)
        assert vision > 0


def _step_in_copies(rank: int, mesh: Any, path: Path, batch: Any) -> None:
    torch.manual_seed(rank)  # what dropout and sampling leave behind is not alike
    model = fsdp.load(ModelConfig(path=str(path), dtype="float32"), True, mesh=mesh)
    settings = OptimizerConfig(lr=1e-3, scheduler={"warmup_steps": 0}, state_dtype="bfloat16")
    optimizer = Optimizer(model, settings, 10)
    for _ in range(3):
        fsdp.run_sharded(completion_scores, model, batch, 1.0).logprobs.sum().backward()
        optimizer.step()
    for name, tensor in optimizer.tensors().items():
        own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        every = [torch.empty_like(own) for _ in range(2)]
        dist.all_gather(every, own.contiguous())
        assert torch.equal(*every), name


@pytest.mark.slow
def test_copies_of_a_model_round_their_moments_alike(tiny_model):
    on_two_ranks(_step_in_copies, tiny_model, [group([], 6, [3, 4], 0)], shard=1)
