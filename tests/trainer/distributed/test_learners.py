"""Fine-tuning on two ranks, and on two pairs that share each sequence, against one process."""

from __future__ import annotations

import pytest

from mmr1.trainer.sft import build_sft
from tests.trainer.distributed.gloo import on_ranks
from tests.trainer.distributed.learners import Case, assert_as_in_one_process, learn_on_rank

SFT = Case(build_sft, 1, list)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "context"), [(2, 1), (4, 2)])
def test_ranks_learn_from_examples_what_one_process_learns(
    ranks, context, tiny_model, mixed, tmp_path
):
    on_ranks(ranks, learn_on_rank, {"sft": SFT}, tiny_model, mixed, tmp_path, ranks, context)
    assert_as_in_one_process("sft", SFT, tmp_path, tiny_model, mixed, tmp_path / "alone")
