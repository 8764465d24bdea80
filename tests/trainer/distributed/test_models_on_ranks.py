"""The models of RL on two ranks, without Ray, against one process: what they log and become."""

from __future__ import annotations

import importlib.util
from collections import deque
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from mmr1.config import ModelConfig, OptimizerConfig
from mmr1.trainer.distributed import fsdp
from mmr1.trainer.distributed.all_ranks import cost_of_group
from mmr1.trainer.distributed.cluster import prompt_cost
from mmr1.trainer.distributed.rank_actor import CpuOffload, storages
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.models.loading import vision_token_cost
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.training_models import TrainingModels, build_training_models
from mmr1.vision.build import family_of, media_cache
from tests.trainer.conversations import conversations
from tests.trainer.distributed.gloo import on_two_ranks
from tests.trainer.distributed.models_on_ranks import CASES, ZOOMED, config_of, learnt
from tests.trainer.tiny_groups import group

IN_4_BITS = importlib.util.find_spec("bitsandbytes") is not None


def needs_bitsandbytes(case: str) -> Any:
    skip = pytest.mark.skipif(not IN_4_BITS, reason="bitsandbytes is not installed")
    return pytest.param(case, marks=skip)


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
        fsdp.run_sharded(completion_scores, model, batch).logprobs.sum().backward()
        optimizer.step()
    for name, tensor in optimizer.tensors().items():
        own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        every = [torch.empty_like(own) for _ in range(2)]
        dist.all_gather(every, own.contiguous())
        assert torch.equal(*every), name


@pytest.mark.slow
def test_copies_of_a_model_round_their_moments_alike(tiny_model):
    on_two_ranks(_step_in_copies, tiny_model, [group([], 6, [3, 4], 0)], shard=1)
