"""What learns from examples on several ranks, without Ray, against one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
from mmr1.types import RolloutGroup
from mmr1.vision.build import family_of, media_cache

ANSWERS = ["a long answer of several words", "no", "it is one"]
# The last batch leaves a rank without an example; in the second only one sees something.
BATCHES = ([0, 1, 2, 3], [1, 0], [3])


@dataclass(frozen=True)
class Case:
    """A way to learn from examples.

    Attributes:
        build: Builds the learner.
        answers: Number of answers to each prompt.
        examples: Makes the examples of prompts with their answers.
        sections: Sections of the configuration.
        by_differences: True if the loss depends on differences of the learner's numbers alone.
    """

    build: Any
    answers: int
    examples: Callable[[list[RolloutGroup]], list[Any]]
    sections: Mapping[str, Any] = field(default_factory=dict)
    by_differences: bool = False

    def config(self, tiny_model: Path, out: Path) -> Config:
        """Three steps, in micro-batches of few tokens."""
        return Config.model_validate(
            {
                "model": {"path": str(tiny_model), "dtype": "float32"},
                "data": {"num_workers": 0},
                "optimizer": {"lr": 1e-3, "scheduler": {"warmup_steps": 0}},
                "trainer": {"max_steps": 3, "output_dir": str(out), "max_tokens_per_gpu": 60},
                **self.sections,
            }
        )

    def examples_of(self, config: Config, mixed: Path) -> list[Any]:
        """Of text, one image, two images and a video."""
        family = family_of(config)
        groups = [
            group_of_responses(family, family.render_prompt(sample), ANSWERS[: self.answers])
            for sample in read_records(mixed)[:4]
        ]
        return self.examples(groups)


def group_of(example: Any) -> RolloutGroup:
    return example if isinstance(example, RolloutGroup) else example.group


def learnt(learner: Any, shares: list[list[Any]], groups: list[RolloutGroup]) -> dict[str, Any]:
    """What three steps log, and what the model then says and is."""
    stats = [learner.step(share) for share in shares]
    model = getattr(learner, "scalar_model", None) or learner.packed_model
    weights = {n: whole(p).clone() for n, p in model.model.named_parameters()}
    return {"stats": stats, "numbers": learner.by_token(groups), "weights": weights}


def learn_on_rank(
    rank: int,
    mesh: Any,
    cases: Mapping[str, Case],
    tiny_model: Path,
    mixed: Path,
    out: Path,
    ranks: int = 2,
    context: int = 1,
) -> None:
    """Learn in a rank's process; the first rank writes what it found, all of them a snapshot.

    Args:
        context: Ranks that share each sequence.
    """
    for name, case in cases.items():
        config = case.config(tiny_model, out)
        family = family_of(config)
        build = partial(
            case.build,
            config,
            family,
            media_cache(family, config),
            fsdp.DistributedProcessGroup(rank, ranks, context),
            partial(fsdp.load, mesh=mesh),
        )
        learner, own = build(), case.examples_of(config, mixed)
        shares = [[own[i] for i in batch[rank // context :: ranks // context]] for batch in BATCHES]
        groups = [group_of(example) for example in own]
        found = learnt(learner, shares, groups)
        learner.snapshot()(out / name)
        dist.barrier()
        # A resumed run may ask for log-probs before it reads the checkpoint.
        resumed = build()
        resumed.by_token(groups)
        resumed.load_snapshot(out / name)
        found["resumed"] = resumed.by_token(groups)
        if rank == 0:
            torch.save(found, out / f"{name}.pt")


def assert_as_in_one_process(
    name: str, case: Case, out: Path, tiny_model: Path, mixed: Path, folder: Path
) -> None:
    """Compare what ranks found and wrote into ``out`` with one process.

    Args:
        folder: For the output of the process.
    """
    config = case.config(tiny_model, folder)
    family = family_of(config)
    learner, own = (
        case.build(config, family, media_cache(family, config)),
        case.examples_of(config, mixed),
    )
    groups = [group_of(example) for example in own]
    alone = learnt(learner, [[own[i] for i in batch] for batch in BATCHES], groups)
    ranks = torch.load(out / f"{name}.pt")
    for ours, theirs in zip(ranks["stats"], alone["stats"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5, rel=1e-5)
    numbers = ranks["numbers"]
    if case.by_differences:  # rounding alone moves the head's bias
        moved = alone["weights"]["head.bias"] - ranks["weights"]["head.bias"]
        numbers = torch.where(numbers == 0, 0, numbers + moved)
    torch.testing.assert_close(numbers, alone["numbers"], atol=1e-4, rtol=1e-4)
    apart = torch.cat(
        [(ranks["weights"][n] - w).abs().flatten() for n, w in alone["weights"].items()]
    )
    assert (apart > 1e-5).float().mean() < 1e-3  # where a gradient is no more than rounding
    torch.testing.assert_close(ranks["resumed"], ranks["numbers"], atol=1e-5, rtol=1e-5)
    # One process continues from what the ranks wrote.
    again = case.build(config, family, media_cache(family, config))
    again.load_snapshot(out / name)
    torch.testing.assert_close(again.by_token(groups), ranks["numbers"], atol=1e-5, rtol=1e-5)
