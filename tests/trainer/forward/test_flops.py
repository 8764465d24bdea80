"""The work of a packed step is the limit: prompt and image once, completions without padding."""

from __future__ import annotations

import sys
from functools import partial

import pytest
import torch

from mmr1.trainer.forward.any_model.forward import Verdict, admit, shared_states
from mmr1.trainer.forward.scores import completion_scores, completion_states
from mmr1.trainer.forward.sequences import group_input
from mmr1.vision.families.loading import UNCHANGED, architecture_named
from mmr1.vision.prepare import MediaCache
from tests.paths import REPOSITORY
from tests.trainer.conversations import conversations, picture
from tests.trainer.tiny_groups import family, new_model
from tests.vision.families.tiny_family import FAMILIES

sys.path.append(str(REPOSITORY / "scripts" / "bench"))
import common


@pytest.mark.parametrize("n", [2, 8])
def test_flops_are_those_of_the_shapes(n):
    model, response, pixels = new_model(), 24, 112
    groups = common.new_groups(family(), 1, n, response, pixels)

    def step():
        completion_scores(model, groups).logprobs.sum().backward()

    prompt = len(groups[0].prompt_ids)
    limit = common.step_flops(model.config, prompt, pixels // 14, n, response, shared=True)
    assert common.flops(step) == pytest.approx(limit, rel=0.001)


@pytest.mark.parametrize("name", ["qwen2_5_vl", pytest.param("qwen2_vl", marks=pytest.mark.slow)])
def test_a_familys_model_costs_the_same_by_the_way_of_any_model(name):
    """The same states and gradients too, with pictures in prompts and in conversations."""
    tiny = FAMILIES[name]
    model, cache = tiny.model(), MediaCache(tiny.family.prepare_media)
    whole = architecture_named("general_vl").load_family(
        str(tiny.folder), model.config, UNCHANGED, False
    )
    talk = conversations(
        tiny.family, cache, [[4, [3, picture(1), 2], 5], [3, [2, picture(2), 4], 6]], [picture(7)]
    )
    any_model = tiny.model()
    admit(any_model, Verdict("packed"))
    ways = (
        (completion_states, model, group_input(tiny.family, cache, talk)),
        (shared_states, any_model, group_input(whole, MediaCache(whole.prepare_media), talk)),
    )
    work, states = [], []
    for forward, of, inputs in ways:
        step = partial(learn, forward, of, inputs)
        work.append(common.flops(step))
        of.zero_grad()
        states.append(step())
    assert work[1] == pytest.approx(work[0], rel=0.002)
    torch.testing.assert_close(states[1], states[0], atol=1e-5, rtol=1e-5)
    pairs = zip(model.parameters(), any_model.parameters(), strict=True)
    gradients = [(own.grad, other.grad) for own, other in pairs if own.grad is not None]
    largest = max(own.abs().max() for own, _ in gradients)
    assert max((own - other).abs().max() for own, other in gradients) <= 1e-5 * largest


def learn(forward, model, inputs):
    hidden = forward(model, [inputs]).hidden
    hidden.sum().backward()
    return hidden.detach()
