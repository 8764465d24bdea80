"""The packed forward against the padded one: values and every parameter's gradient."""

from dataclasses import replace

import peft
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmr1.rollout.distribution import Distribution
from mmr1.trainer.forward.scores import completion_scores, completion_states
from mmr1.trainer.forward.sequences import completion_batch, length_mask, to_rows
from mmr1.vision.families.loading import unwrapped
from mmr1.vision.features import FeatureCache, encode_media
from tests.padded_forward import padded_scores
from tests.trainer.forward.packed_groups import (
    GROUPS,
    TOLERANCE,
    assert_gradients,
    assert_same,
    gradients,
    one_image,
    weighted_sum,
)
from tests.trainer.tiny_groups import family, group, image, new_model, video, with_support


@pytest.mark.parametrize("case", GROUPS)
def test_equals_the_padded_forward(case):
    names = assert_same(new_model(), GROUPS[case]())
    if case != "text":
        assert any("visual" in name for name in names)


@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_random_ragged_groups(data):
    media = {
        "text": [],
        "image": [image(56, 56, 7)],
        "two images": [image(28, 84, 8), image(56, 56, 7)],
        "video": [video(4, 56, 56, 1)],
    }
    groups = []
    for seed in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(sorted(media)))
        lengths = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=5))
        text = data.draw(st.integers(1, 20))
        groups.append(group(media[kind], text, lengths, seed))
    assert_same(new_model(), groups, temperature=1.0)


def test_forbidden_tokens_are_outside_the_distribution():
    model, groups = new_model(), GROUPS["everything"]()
    used = {int(t) for g in groups for row in g.completions for t in row}
    forbidden = tuple(i for i in range(640) if i not in used)[:200]
    expected = padded_scores(model, groups, Distribution(0.7, forbidden=forbidden))
    free = completion_scores(model, groups, Distribution(0.7))
    got = completion_scores(model, groups, Distribution(0.7, forbidden=forbidden))
    torch.testing.assert_close(got.logprobs, expected.logprobs, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(got.entropy, expected.entropy, atol=TOLERANCE, rtol=0)
    assert_gradients(gradients(model, got), gradients(model, expected))
    assert (got.logprobs >= free.logprobs).all()  # their mass went to the others


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", ["text", "everything"])
def test_kept_ids_equal_the_padded_forward(case, seed, lora):
    """The reference masks all logits; autograd differentiates it."""
    model = new_model()
    if lora:
        torch.manual_seed(0)
        config = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
        model = peft.get_peft_model(model, config)
    groups, distribution = with_support(GROUPS[case](), seed), Distribution(0.7, top_k=9)
    expected = padded_scores(unwrapped(model), groups, distribution)
    got = completion_scores(model, groups, distribution)
    whole = completion_scores(model, groups, Distribution(0.7))
    torch.testing.assert_close(got.logprobs, expected.logprobs, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(got.entropy, expected.entropy, atol=TOLERANCE, rtol=0)
    assert_gradients(gradients(model, got), gradients(model, expected))
    assert (got.logprobs > whole.logprobs + 1).any()


def test_small_chunks_change_nothing():
    assert_same(new_model(), GROUPS["everything"](), chunk_elements=3 * 640)


@pytest.mark.parametrize("case", ["image", "everything"])
def test_with_activation_checkpointing(case):
    model = new_model()
    wanted = gradients(model, padded_scores(model, GROUPS[case]()))
    model.train()  # layers checkpoint only in training
    model.gradient_checkpointing_enable({"use_reentrant": False})
    actual = gradients(model, completion_scores(model, GROUPS[case]()))
    assert_gradients(actual, wanted)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_with_lora(checkpointing):
    config = peft.LoraConfig(
        r=4, target_modules="all-linear", init_lora_weights=False, lora_alpha=1
    )
    model = peft.get_peft_model(new_model(), config)
    if checkpointing:
        model.train()
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    groups = GROUPS["everything"]()
    wanted = gradients(model, padded_scores(unwrapped(model), groups))
    actual = gradients(model, completion_scores(model, groups))
    assert any("visual" in n and "lora" in n for n in wanted)
    assert_gradients(actual, wanted)


def test_a_frozen_tower_is_run_once():
    model = new_model()
    model.model.visual.requires_grad_(False)
    groups, features = GROUPS["everything"](), FeatureCache()
    runs = []
    model.model.visual.register_forward_pre_hook(lambda _, args: runs.append(len(args[0])))
    expected = completion_scores(model, groups)
    wanted = gradients(model, expected)
    del runs[:]
    for _ in range(3):
        got = completion_scores(model, groups, features=features)
        torch.testing.assert_close(got.logprobs, expected.logprobs, atol=1e-6, rtol=0)
        assert_gradients(gradients(model, got), wanted)
    media = {m.digest: m for g in groups for m in g.media}
    assert runs == [len(m.patches) for m in media.values()]


def test_kept_features_do_not_depend_on_what_is_encoded_beside_them():
    """A resumed run meets its media in other company, and is to find the same features."""
    model = new_model()
    model.model.visual.requires_grad_(False)
    media = [m for g in GROUPS["everything"]() for m in g.media]
    together = FeatureCache()
    encode_media(model, media, together)
    for medium in media:
        alone = encode_media(model, [medium], FeatureCache())
        assert torch.equal(alone, together[medium.digest])


def test_features_of_a_trained_tower_cannot_be_kept():
    with pytest.raises(ValueError, match="only be kept where the vision tower is frozen"):
        completion_scores(new_model(), GROUPS["image"](), features=FeatureCache())


def test_feature_cache_is_bounded():
    cache = FeatureCache(max_bytes=2 * 4 * 4)
    for name in "abc":
        cache[name] = torch.zeros(1, 4)
        assert name in cache
    assert "a" not in cache
    assert len(cache) == 2


def test_each_image_goes_through_the_tower_once():
    model = new_model()
    seen = []
    model.model.visual.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    completion_scores(model, GROUPS["one image in two prompts"]())
    assert seen == [len(one_image().patches) + len(image(28, 28, 9).patches)]


@pytest.mark.parametrize("case", ["text", "everything"])
def test_split_groups_add_up_to_the_whole(case):
    groups = GROUPS[case]()
    model = new_model()
    whole = completion_scores(model, groups)
    model.zero_grad()
    whole.logprobs.square().sum().backward()
    wanted = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    rows = []
    for g in groups:
        half = (len(g.completions) + 1) // 2
        for part in (g.completions[:half], g.completions[half:]):
            if part:
                piece = replace(g, completions=part)
                scores = completion_scores(model, [piece])
                scores.logprobs.square().sum().backward()
                rows += [row[: len(c)] for row, c in zip(scores.logprobs, part, strict=True)]
    _, mask = completion_batch(groups)
    torch.testing.assert_close(torch.cat(rows), whole.logprobs[mask], atol=TOLERANCE, rtol=0)
    parts = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert_gradients(parts, wanted)


@pytest.mark.parametrize("read", ["before", "at"])
def test_hidden_states_are_those_of_the_plain_forward(read):
    model, groups = new_model(), GROUPS["everything"]()
    states = completion_states(model, groups, read)
    hidden, padded = states.hidden, states.padded
    expected = []
    for g in groups:
        for completion in g.completions:
            one = replace(g, completions=(completion,))
            states = whole_sequence(model, one)
            start = len(g.prompt_ids) - (read == "before")
            expected.append(states[start : start + len(completion)])
    torch.testing.assert_close(hidden, torch.cat(expected), atol=TOLERANCE, rtol=0)
    lengths = [len(row) for g in groups for row in g.completions]
    assert padded.shape == (len(lengths), max(lengths))
    values = to_rows(hidden[:, 0], padded)
    mask = length_mask(lengths)
    assert torch.equal(values[mask], hidden[:, 0])
    assert not values[~mask].any()


def whole_sequence(model, one):
    """Final hidden states of a prompt and its completion by transformers' own forward."""
    media = {kind: [m for m in one.media if m.kind == kind] for kind in ("image", "video")}
    inputs = {}
    for kind, pixels, grid in (
        ("image", "pixel_values", "image_grid_thw"),
        ("video", "pixel_values_videos", "video_grid_thw"),
    ):
        if media[kind]:
            inputs[pixels] = torch.cat([m.patches for m in media[kind]])
            inputs[grid] = torch.tensor([m.grid for m in media[kind]])
    positions = torch.cat([one.prompt_positions, one.completion_positions(0)], 1)
    ids = torch.cat([one.prompt_ids, one.completions[0]])
    out = model.model(
        input_ids=ids[None],
        position_ids=positions[:, None],
        attention_mask=torch.ones_like(ids)[None],
        use_cache=False,
        **inputs,
    )
    return out.last_hidden_state[0]


def test_sequences_do_not_see_each_other():
    model = new_model()
    a, b = group([], 9, [6, 5], 0), group([one_image()], 7, [4, 8], 1)
    alone = completion_scores(model, [a]).logprobs
    other = group([image(84, 84, 3)], 12, [9, 2], 5)
    for neighbour in (b, other):
        together = completion_scores(model, [a, neighbour]).logprobs[:2, : alone.shape[1]]
        torch.testing.assert_close(together, alone, atol=TOLERANCE, rtol=0)


def test_layers_that_do_not_run_packed_attention_are_noticed():
    model = new_model()
    attention = model.model.language_model.layers[0].self_attn
    own = type(attention.config)(**attention.config.to_dict())
    own._attn_implementation = "sdpa"
    attention.config = own
    with pytest.raises(AssertionError, match="1 of 2 layers mixed the packed sequences"):
        completion_scores(model, GROUPS["text"]())


def test_the_model_still_generates_and_takes_padded_batches():
    model = new_model()
    groups = GROUPS["everything"]()
    before = padded_scores(model, groups)
    generated = model.generate(torch.arange(30, 40)[None], max_new_tokens=5, do_sample=False)
    completion_scores(model, groups)
    after = padded_scores(model, groups)
    torch.testing.assert_close(after.logprobs, before.logprobs, atol=TOLERANCE, rtol=0)
    again = model.generate(torch.arange(30, 40)[None], max_new_tokens=5, do_sample=False)
    assert torch.equal(generated, again)


def test_sampled_placeholders_are_refused():
    g = group([one_image()], 5, [4, 4], 0)
    bad = g.completions[0].clone()
    bad[1] = family().image_id
    g = replace(g, completions=(bad, g.completions[1]))
    with pytest.raises(ValueError, match="forbid them in sampling"):
        completion_scores(new_model(), [g])


def test_lora_on_the_output_layer_is_refused():
    config = peft.LoraConfig(r=4, target_modules=["lm_head"])
    model = peft.get_peft_model(new_model(), config)
    with pytest.raises(ValueError, match="leave lm_head out"):
        completion_scores(model, GROUPS["text"]())


def test_bf16_autocast_is_close_to_float32():
    model, groups = new_model(), GROUPS["everything"]()
    exact = completion_scores(model, groups).logprobs
    with torch.autocast("cpu", torch.bfloat16):
        got = completion_scores(model, groups)
    assert got.logprobs.dtype == torch.float32
    torch.testing.assert_close(got.logprobs, exact, atol=0.1, rtol=0)
    weighted_sum(got).backward()
