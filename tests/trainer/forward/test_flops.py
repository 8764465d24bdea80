"""The work of a packed step is the limit: prompt and image once, completions without padding."""

import sys

import pytest

from mmr1.trainer.forward.scores import completion_scores
from tests.paths import REPOSITORY
from tests.trainer.tiny_groups import family, new_model

sys.path.append(str(REPOSITORY / "scripts" / "bench"))
import common


@pytest.mark.parametrize("n", [2, 8])
def test_flops_are_those_of_the_shapes(n):
    model, response, pixels = new_model(), 24, 112
    groups = common.new_groups(family(), 1, n, response, pixels)

    def step():
        completion_scores(model, groups, 1.0).logprobs.sum().backward()

    prompt = len(groups[0].prompt_ids)
    limit = common.step_flops(model.config, prompt, pixels // 14, n, response, shared=True)
    assert common.flops(step) == pytest.approx(limit, rel=0.001)
