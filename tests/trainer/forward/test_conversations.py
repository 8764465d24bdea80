"""Conversations with an environment through the packed forward.

They are compared with the padded forward, and with transformers' own forward of each by itself,
which finds the positions itself.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmr1.trainer.forward.micro_batches import micro_batches
from mmr1.trainer.forward.scores import completion_scores, completion_states
from mmr1.trainer.forward.sequences import completion_batch, completion_mask, group_input
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache
from tests.padded_forward import padded_scores
from tests.trainer.conversations import conversations, picture
from tests.trainer.forward.packed_groups import assert_gradients, assert_same, gradients
from tests.trainer.forward.plain_conversations import plain_logprobs
from tests.trainer.tiny_groups import family, new_model
from tests.vision.families.tiny_family import FAMILIES

TOLERANCE = 1e-5
ZOOMED, OTHER = picture(1), picture(2, 84, 56)

TURNS = {
    "text of a tool": [[4, [5], 3], [2, [3], 4, [6], 5]],
    "a picture": [[4, [3, ZOOMED, 2], 5], [3, [2, OTHER, 4], 6]],
    "one picture for a whole group": [[4, [3, ZOOMED, 2], 5], [6, [1, ZOOMED, 2], 3]],
    "several in one answer": [[4, [1, ZOOMED, 1, OTHER, 3], 5], [2]],
    "several turns": [[3, [2, ZOOMED, 2], 4, [1, OTHER, 1], 2, [3], 6], [5, [4], 2], [7]],
    "one completion": [[3, [2, ZOOMED, 2], 4, [1, OTHER, 1], 2]],
}
PROMPTS = {"no picture": [], "a picture": [picture(7)], "the tool's own": [ZOOMED]}


def media():
    return MediaCache(family().prepare_media)


def inputs_of(*groups, cache=None):
    cache = cache or media()
    return [group_input(family(), cache, group) for group in groups]


def mixed(cache):
    """Groups of every kind, and one without an environment."""
    groups = [
        conversations(family(), cache, turns, PROMPTS[shown], seed)
        for seed, (turns, shown) in enumerate(zip(TURNS.values(), [*PROMPTS] * 2, strict=True))
    ]
    plain = replace(
        groups[0],
        completions=tuple(replace(c, spans=()) for c in groups[0].completions),
    )
    return [plain, *groups]


@pytest.mark.parametrize("shown", PROMPTS)
@pytest.mark.parametrize("turns", TURNS)
def test_packed_equals_padded(turns, shown):
    cache = media()
    group = conversations(family(), cache, TURNS[turns], PROMPTS[shown])
    assert_same(new_model(), inputs_of(group, cache=cache))


def test_groups_with_and_without_an_environment_share_a_packed_sequence():
    cache = media()
    assert_same(new_model(), inputs_of(*mixed(cache), cache=cache))


@pytest.mark.parametrize("turns", TURNS)
def test_equals_the_plain_forward_of_each_conversation_by_itself(turns):
    model, cache = new_model(), media()
    group = conversations(family(), cache, TURNS[turns], PROMPTS["a picture"])
    got = completion_scores(model, inputs_of(group, cache=cache)).logprobs
    expected = torch.zeros_like(got)
    for row, completion in enumerate(group.completions):
        expected[row, : len(completion.token_ids)] = plain_logprobs(model, cache, group, completion)
    expected = expected * completion_mask([group])
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)
    wanted = weights_gradient(model, expected)
    assert_gradients(weights_gradient(model, got), wanted)


def weights_gradient(model, logprobs):
    model.zero_grad()
    weights = torch.randn(logprobs.shape, generator=torch.Generator().manual_seed(0))
    (logprobs * weights).sum().backward(retain_graph=True)
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def test_one_pixel_of_a_tools_picture_moves_the_tokens_after_it_alone():
    model, rows = new_model(), []
    for pixel in (0, 255):
        cache = media()
        turns = [[4, [3, picture(1, pixel=pixel), 2], 5], [6, [2], 3]]
        group = conversations(family(), cache, turns)
        rows.append(completion_scores(model, inputs_of(group, cache=cache)).logprobs)
    moved = (rows[0] - rows[1]).abs()
    after = torch.zeros_like(moved, dtype=torch.bool)
    after[0, -5:] = True
    assert moved.shape[1] == 4 + 3 + ZOOMED_TOKENS + 2 + 5
    assert (moved[after] > 1e-5).all()
    assert not moved[~after].any()


ZOOMED_TOKENS = 6  # 56 x 84 pixels


def test_only_sampled_tokens_have_a_log_prob():
    cache = media()
    groups = mixed(cache)
    inputs = inputs_of(*groups, cache=cache)
    _, mask = completion_batch(inputs)
    assert torch.equal(mask, completion_mask(groups))
    assert [int(row.sum()) for row in mask] == [
        c.sampled_tokens for g in groups for c in g.completions
    ]
    scores = completion_scores(new_model(), inputs)
    assert (scores.logprobs[mask] < 0).all()
    assert not scores.logprobs[~mask].any()
    assert not scores.entropy[~mask].any()
    states = completion_states(new_model(), inputs, "at")
    assert len(states.hidden) == int(mask.sum()) == states.padded.places.shape[1]


def test_a_picture_of_several_completions_is_encoded_once():
    model, cache, seen = new_model(), media(), []
    model.model.visual.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    turns = [[4, [3, ZOOMED, 2], 5]] * 3 + [[2, [1, ZOOMED, 1, ZOOMED, 1], 4]]
    group = conversations(family(), cache, turns, [ZOOMED])
    completion_scores(model, inputs_of(group, cache=cache))
    assert seen == [len(cache[ZOOMED].patches)]
    assert cache.processor_calls == 1


@pytest.mark.parametrize("budget", [40, 70, 10_000])
def test_micro_batches_add_up_to_the_whole(budget):
    model, cache = new_model(), media()
    inputs = inputs_of(*mixed(cache), cache=cache)
    whole = completion_scores(model, inputs)
    wanted = gradients(model, whole._replace(entropy=0 * whole.entropy))
    model.zero_grad()
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(2, *whole.logprobs.shape, generator=generator)[0]
    batches = micro_batches(inputs, budget)
    assert (len(batches) == 1) == (budget == 10_000)
    for batch in batches:
        scores = completion_scores(model, batch.groups).logprobs
        expected = whole.logprobs[batch.rows, : scores.shape[1]]
        torch.testing.assert_close(scores, expected, atol=TOLERANCE, rtol=0)
        (scores * weights[batch.rows, : scores.shape[1]]).sum().backward()
    actual = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert_gradients(actual, wanted)


def test_a_picture_costs_its_tokens_in_the_tower_once():
    cache = media()
    turns = [[4, [3, ZOOMED, 2], 5], [4, [3, ZOOMED, 2], 5]]
    (group,) = inputs_of(conversations(family(), cache, turns), cache=cache)
    tokens = len(group.prompt_ids) + sum(map(len, group.completions))
    assert len(micro_batches([group], tokens + ZOOMED_TOKENS)) == 1
    assert len(micro_batches([group], tokens + ZOOMED_TOKENS - 1)) == 2


def test_kept_features_serve_completions_too():
    model, cache = new_model(), media()
    model.model.visual.requires_grad_(False)
    inputs = inputs_of(*mixed(cache), cache=cache)
    expected, features = completion_scores(model, inputs).logprobs, FeatureCache()
    for _ in range(2):
        got = completion_scores(model, inputs, features=features).logprobs
        torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)
    assert len(features) == len({m.digest for g in inputs for m in g.all_media})


def test_padded_scores_are_zero_where_the_environment_speaks():
    cache = media()
    inputs = inputs_of(*mixed(cache), cache=cache)
    _, mask = completion_batch(inputs)
    assert not padded_scores(new_model(), inputs).logprobs[~mask].any()


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen3_vl"])
def test_every_family_goes_on_after_an_answer(name):
    """Features in one layer or in several."""
    tiny = FAMILIES[name]
    cache = MediaCache(tiny.family.prepare_media)
    group = conversations(tiny.family, cache, TURNS["several turns"], [picture(7)])
    assert_same(tiny.model(), [group_input(tiny.family, cache, group)])


def test_a_text_model_goes_on_after_an_answer():
    tiny = FAMILIES["qwen2"]
    model, cache = tiny.model(), MediaCache(tiny.family.prepare_media)
    group = conversations(tiny.family, cache, TURNS["text of a tool"])
    got = completion_scores(model, [group_input(tiny.family, cache, group)]).logprobs
    expected = torch.zeros_like(got)
    for row, completion in enumerate(group.completions):
        own = completion.token_ids.tolist()
        ids = torch.tensor([*group.prompt.token_ids, *own])
        logprobs = model(input_ids=ids[None], use_cache=False).logits[0, :-1].log_softmax(-1)
        expected[row, : len(own)] = logprobs.gather(-1, ids[1:, None])[-len(own) :, 0]
    expected = expected * completion_mask([group])
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)
    wanted = weights_gradient(model, expected)
    assert_gradients(weights_gradient(model, got), wanted)
