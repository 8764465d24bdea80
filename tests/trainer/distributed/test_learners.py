"""What learns from examples on two ranks, without Ray, against one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from mmr1.config import Config
from mmr1.data.record import read_records
from mmr1.data.responses import group_of_responses
from mmr1.trainer.distributed import fsdp
from mmr1.trainer.models.weights import whole
from mmr1.trainer.sft import build_sft
from mmr1.types import RolloutGroup
from mmr1.vision.build import family_of, media_cache
from mmr1_contrib.offline.dpo import PAIR, Preference, build_dpo, with_unrelated
from mmr1_contrib.offline.reward_model import (
    LabelledSteps,
    build_process_reward_model,
    build_reward_model,
)
from tests.trainer.distributed.gloo import on_two_ranks

KINDS = ("sft", "dpo", "kto", "ranking", "process")
ANSWERS = ["a long answer of several words", "no", "it is one"]
# The last batch leaves a rank without an example; in the second only one sees something.
BATCHES = ([0, 1, 2, 3], [1, 0], [3])


def config_of(kind: str, tiny_model: Path, out: Path) -> Config:
    return Config.model_validate(
        {
            "model": {"path": str(tiny_model), "dtype": "float32"},
            "data": {"num_workers": 0},
            "dpo": {"loss": {"type": "kto" if kind == "kto" else "sigmoid", "beta": 0.5}},
            "rm": {"type": "process" if kind == "process" else "outcome"},
            "optimizer": {"lr": 1e-3, "scheduler": {"warmup_steps": 0}},
            "trainer": {"max_steps": 3, "output_dir": str(out), "max_tokens_per_gpu": 60},
        }
    )


def build(kind: str) -> Any:
    return {
        "sft": build_sft,
        "ranking": build_reward_model,
        "process": build_process_reward_model,
    }.get(kind, build_dpo)


def examples(kind: str, config: Config, mixed: Path) -> list[Any]:
    """Of text, one image, two images and a video."""
    family = family_of(config)
    counts = {"sft": 1, "process": 1, "ranking": 3}.get(kind, 2)
    groups = [
        group_of_responses(family, family.render_prompt(sample), ANSWERS[:counts])
        for sample in read_records(mixed)[:4]
    ]
    if kind in ("sft", "ranking"):
        return groups
    if kind == "process":
        return [LabelledSteps(g, (0, 3), (1.0, 0.0)) for g in groups]
    if kind == "dpo":
        return [Preference(g, PAIR, (-30.0, -8.0)) for g in groups]
    reference = (-30.0, -8.0, -40.0)
    return [Preference(g, PAIR, reference) for g in with_unrelated(groups)]


def learnt(learner: Any, shares: list[list[Any]], groups: list[RolloutGroup]) -> dict[str, Any]:
    """What three steps log, and what the model then says and is."""
    stats = [learner.step(share) for share in shares]
    model = getattr(learner, "scalar_model", None) or learner.packed_model
    weights = {n: whole(p).clone() for n, p in model.model.named_parameters()}
    return {"stats": stats, "numbers": learner.by_token(groups), "weights": weights}


def group_of(example: Any) -> RolloutGroup:
    return example if isinstance(example, RolloutGroup) else example.group


def build_here(
    kind: str, config: Config, rank: int, mesh: Any, size: int = 2, context: int = 1
) -> Any:
    family = family_of(config)
    return build(kind)(
        config,
        family,
        media_cache(family, config),
        fsdp.DistributedProcessGroup(rank, size, context),
        partial(fsdp.load, mesh=mesh),
    )


def _learn(rank: int, mesh: Any, tiny_model: Path, mixed: Path, out: Path) -> None:
    for kind in KINDS:
        config = config_of(kind, tiny_model, out)
        learner = build_here(kind, config, rank, mesh)
        own = examples(kind, config, mixed)
        shares = [[own[i] for i in batch[rank::2]] for batch in BATCHES]
        groups = [group_of(e) for e in own]
        found = learnt(learner, shares, groups)
        learner.snapshot()(out / kind)
        dist.barrier()
        if kind == "dpo":
            # A resumed run asks for the reference's log-probs before it reads the checkpoint.
            resumed = build_here(kind, config, rank, mesh)
            resumed.by_token(groups)
            resumed.load_snapshot(out / kind)
            found["resumed"] = resumed.by_token(groups)
        if rank == 0:
            torch.save(found, out / f"{kind}.pt")


@pytest.fixture(scope="module")
def on_ranks(tiny_model, mixed, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("learners")
    on_two_ranks(_learn, tiny_model, mixed, out)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_learn_from_examples_what_one_process_learns(
    kind, on_ranks, tiny_model, mixed, tmp_path
):
    config = config_of(kind, tiny_model, tmp_path)
    family = family_of(config)
    learner = build(kind)(config, family, media_cache(family, config))
    own = examples(kind, config, mixed)
    alone = learnt(learner, [[own[i] for i in b] for b in BATCHES], [group_of(e) for e in own])
    ranks = torch.load(on_ranks / f"{kind}.pt")
    for ours, theirs in zip(ranks["stats"], alone["stats"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5, rel=1e-5)
    numbers = ranks["numbers"]
    if kind == "ranking":  # the loss depends on differences: rounding alone moves the head's bias
        moved = alone["weights"]["head.bias"] - ranks["weights"]["head.bias"]
        numbers = torch.where(numbers == 0, 0, numbers + moved)
    torch.testing.assert_close(numbers, alone["numbers"], atol=1e-4, rtol=1e-4)
    apart = torch.cat(
        [(ranks["weights"][n] - w).abs().flatten() for n, w in alone["weights"].items()]
    )
    assert (apart > 1e-5).float().mean() < 1e-3  # where a gradient is no more than rounding
    if "resumed" in ranks:
        torch.testing.assert_close(ranks["resumed"], ranks["numbers"], atol=1e-5, rtol=1e-5)
    # One process continues from what the ranks wrote.
    again = build(kind)(config, family, media_cache(family, config))
    again.load_snapshot(on_ranks / kind)
    torch.testing.assert_close(
        again.by_token([group_of(e) for e in own]), ranks["numbers"], atol=1e-5, rtol=1e-5
    )
