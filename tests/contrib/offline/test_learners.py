"""The wing's learners on two ranks, and on two pairs that share each sequence."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmr1.types import RolloutGroup
from mmr1_contrib.offline.dpo import PAIR, Preference, build_dpo, with_unrelated
from mmr1_contrib.offline.reward_model import (
    LabelledSteps,
    build_process_reward_model,
    build_reward_model,
)
from tests.trainer.distributed.gloo import on_ranks
from tests.trainer.distributed.learners import Case, assert_as_in_one_process, learn_on_rank


def pairs(groups: list[RolloutGroup]) -> list[Preference]:
    return [Preference(group, PAIR, (-30.0, -8.0)) for group in groups]


def labelled(groups: list[RolloutGroup]) -> list[Preference]:
    return [Preference(group, PAIR, (-30.0, -8.0, -40.0)) for group in with_unrelated(groups)]


def steps(groups: list[RolloutGroup]) -> list[LabelledSteps]:
    return [LabelledSteps(group, (0, 3), (1.0, 0.0)) for group in groups]


CASES = {
    "dpo": Case(build_dpo, 2, pairs, {"dpo": {"loss": {"type": "sigmoid", "beta": 0.5}}}),
    "kto": Case(build_dpo, 2, labelled, {"dpo": {"loss": {"type": "kto", "beta": 0.5}}}),
    "ranking": Case(build_reward_model, 3, list, by_differences=True),
    "process": Case(build_process_reward_model, 1, steps, {"rm": {"type": "process"}}),
}


@pytest.fixture(scope="module", params=[(2, 1), (4, 2)], ids=["two_ranks", "two_pairs"])
def folder(request, tiny_model, mixed, tmp_path_factory) -> Path:
    ranks, context = request.param
    out = tmp_path_factory.mktemp("learners")
    on_ranks(ranks, learn_on_rank, CASES, tiny_model, mixed, out, ranks, context)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_ranks_learn_from_examples_what_one_process_learns(
    name, folder, tiny_model, mixed, tmp_path
):
    assert_as_in_one_process(name, CASES[name], folder, tiny_model, mixed, tmp_path)
