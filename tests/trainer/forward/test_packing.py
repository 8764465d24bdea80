"""The packed layout against one worked by hand, and micro-batches by their promises."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmr1.trainer.forward.micro_batches import micro_batches
from mmr1.trainer.forward.packing import pack
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.forward.sequences import GroupInput
from mmr1.vision.prepare import Medium
from tests.trainer.tiny_groups import family, group, image, new_model

CPU = torch.device("cpu")
PLACEHOLDERS = (family().image_id, family().video_id)


def hand_made():
    """A prompt ``30 <image of 1x2> 31`` with completions of 3, 1 and 2; text with one of 2."""
    medium = Medium("image", torch.zeros(8, 1176), (1, 2, 4), 2, None, "two tokens")
    pad = family().image_id
    ids = [30, pad, pad, 31]
    positions = family().prompt_positions(ids, [medium])
    completions = (torch.tensor([40, 41, 42]), torch.tensor([50]), torch.tensor([60, 61]))
    first = GroupInput(torch.tensor(ids), positions, 4, (medium,), completions)
    second = GroupInput(
        torch.tensor([32, 33]), torch.arange(2).expand(3, -1), 2, (), (torch.tensor([70, 71]),)
    )
    return [first, second]


def test_layout_worked_by_hand():
    pad = family().image_id
    packed = pack(hand_made(), PLACEHOLDERS, CPU)
    #                          prefix 1        | prefix 2  | suffixes, their last tokens left out
    assert packed.ids.tolist() == [30, pad, pad, 31, 32, 33, 70, 40, 41, 60]
    # The image is one row of two: time 1 1, height 1 1, width 1 2; the text continues at 3.
    assert packed.positions.tolist() == [
        [0, 1, 2, 3, 0, 1, 2, 4, 5, 4],
        [0, 1, 1, 3, 0, 1, 2, 4, 5, 4],
        [0, 1, 1, 3, 0, 1, 2, 4, 5, 4],
        [0, 1, 2, 3, 0, 1, 2, 4, 5, 4],
    ]
    assert packed.layout.prefixes.q_lengths == (4, 3)
    assert packed.layout.suffixes.q_lengths == (2, 0, 1)
    assert packed.layout.shared.q_lengths == (3, 0)
    assert packed.layout.shared.k_lengths == (4, 3)
    # The first token of each completion is predicted at the prompt's last token.
    assert packed.rows.tolist() == [3, 7, 8, 3, 3, 9, 5, 6]
    assert packed.targets.tolist() == [40, 41, 42, 50, 60, 61, 70, 71]
    assert packed.feature_slots.tolist() == [1, 2]
    assert packed.feature_rows.tolist() == [0, 1]


def test_positions_of_a_model_of_text_have_one_row():
    """Place and rotary position of a completion continue its prompt, in every row there is."""
    prompt, rows = torch.tensor([30, 31, 32]), (torch.tensor([40, 41, 42]), torch.tensor([50, 51]))
    packed = pack([GroupInput(prompt, torch.arange(3)[None], 3, (), rows)], PLACEHOLDERS, CPU)
    assert packed.positions.tolist() == [[0, 1, 2, 3, 4, 3]] * 2


def test_reading_at_the_tokens_keeps_the_last_ones():
    packed = pack(hand_made(), PLACEHOLDERS, CPU, read="at")
    assert packed.ids[packed.rows].tolist() == packed.targets.tolist()
    assert packed.ids.tolist()[8:] == [40, 41, 42, 50, 60, 61]
    assert packed.layout.suffixes.q_lengths == (3, 1, 2)


def test_an_image_of_two_prompts_has_its_features_once():
    shared, other = image(56, 56, 0), image(56, 84, 1)  # 4 and 6 tokens
    groups = [group([shared], 3, [2, 2], 0), group([other, shared], 3, [2, 2], 1)]
    packed = pack(groups, PLACEHOLDERS, CPU)
    assert [m.digest for m in packed.media] == [shared.digest, other.digest]
    assert packed.feature_rows.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3]
    assert packed.ids[packed.feature_slots].eq(family().image_id).all()


def cost(groups, vision_token_cost):
    media = {m.digest: m.tokens for g in groups for m in g.media}
    tokens = sum(len(g.prompt_ids) + sum(map(len, g.completions)) for g in groups)
    return tokens + vision_token_cost * sum(media.values())


def rows_of(groups):
    rows, start = [], 0
    for g in groups:
        rows.append(list(range(start, start + len(g.completions))))
        start += len(g.completions)
    return rows


MEDIA = [[], [image(56, 56, 7)], [image(28, 84, 8), image(56, 56, 7)]]


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_micro_batches_keep_their_promises(data):
    lengths = st.lists(st.integers(1, 40), min_size=1, max_size=6)
    groups = [
        group(data.draw(st.sampled_from(MEDIA)), data.draw(st.integers(1, 20)), ls, seed)
        for seed, ls in enumerate(data.draw(st.lists(lengths, min_size=1, max_size=6)))
    ]
    total = sum(len(g.completions) for g in groups)
    keep = torch.tensor(data.draw(st.lists(st.booleans(), min_size=total, max_size=total)))
    budget, vision_token_cost = (
        data.draw(st.integers(1, 200)),
        data.draw(st.sampled_from([0, 0.5, 2])),
    )
    made = micro_batches(groups, budget, vision_token_cost, keep)

    rows = [row for batch in made for row in batch.rows.tolist()]
    assert sorted(rows) == keep.nonzero()[:, 0].tolist()
    completions = [c for g in groups for c in g.completions]
    for batch in made:
        held = [c for g in batch.groups for c in g.completions]
        assert len(held) == len(batch.rows)
        assert all(c is completions[row] for c, row in zip(held, batch.rows, strict=True))
    costs = [cost(batch.groups, vision_token_cost) for batch in made]
    assert costs == sorted(costs, reverse=True)
    for batch, spent in zip(made, costs, strict=True):
        fixed = cost(
            [replace(g, completions=()) for g in batch.groups],
            vision_token_cost,
        )
        # What cannot fit is not cut finer than its longest completion makes necessary.
        siblings = [own for own in rows_of(groups) if set(own) & set(batch.rows.tolist())]
        longest = max(len(completions[row]) for own in siblings for row in own if keep[row])
        assert spent <= max(budget, fixed + longest)
        assert spent <= budget or len(batch.groups) == 1
    for g, own in zip(groups, rows_of(groups), strict=True):
        kept = [row for row in own if keep[row]]
        part = tuple(completions[row] for row in kept)
        whole = replace(g, completions=part)
        if kept and cost([whole], vision_token_cost) <= budget:
            assert any(set(kept) <= set(batch.rows.tolist()) for batch in made)


def test_one_budget_is_one_micro_batch():
    groups = [group([], 5, [3, 3], 0), group([], 5, [4], 1)]
    assert len(micro_batches(groups, budget=20, vision_token_cost=0)) == 1
    assert len(micro_batches(groups, budget=19, vision_token_cost=0)) == 2


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ValueError, match="must be positive"):
        micro_batches([group([], 5, [3], 0)], budget=0)


def test_groups_that_share_no_prompt_are_not_put_together():
    """Each is a forward of its own, and ranks must run equally many."""
    groups = [group([], 5, [3, 4], seed) for seed in range(3)]
    assert [len(b.groups) for b in micro_batches(groups, 1000)] == [3]
    alone = micro_batches(groups, 1000, shares_prompts=False)
    assert [b.rows.tolist() for b in alone] == [[0, 1], [2, 3], [4, 5]]


def test_cost_without_a_shared_prompt_is_that_of_padded_rows():
    """Each completion brings its prompt and is padded to the longest; and shows its media anew."""
    text = group([], 5, [3, 4], 0)
    assert len(micro_batches([text], 18, shares_prompts=False)) == 1
    assert len(micro_batches([text], 17, shares_prompts=False)) == 2
    shown = group([image(56, 56, 7)], 5, [3, 4], 0)  # 4 vision tokens, in prompt and tower
    rows = 2 * (len(shown.prompt_ids) + 4)
    assert len(micro_batches([shown], rows + 2 * 4 * 0.5, 0.5, shares_prompts=False)) == 1
    assert len(micro_batches([shown], rows + 2 * 4 * 0.5 - 1, 0.5, shares_prompts=False)) == 2


def test_models_own_forward_takes_media_of_each_prompt():
    """With arguments of its own, a medium that two groups show costs twice; else once."""
    medium = image(56, 56, 7)  # 4 vision tokens
    plain = [group([medium], 5, [3], seed) for seed in range(2)]
    tokens = sum(len(g.prompt_ids) + 3 for g in plain)
    assert len(micro_batches(plain, tokens + 4)) == 1
    own = [replace(g, arguments={"pixel_values": torch.zeros(1, 2)}) for g in plain]
    assert len(micro_batches(own, tokens + 4)) == 2
    assert len(micro_batches(own, tokens + 8)) == 1


def test_groups_of_another_kind_are_not_put_together():
    """A processor's arguments must agree behind their first dimension."""
    shapes = ((1, 2), (3, 2), (1, 4))
    groups = [
        replace(group([], 5, [3], seed), arguments={"pixel_values": torch.zeros(shape)})
        for seed, shape in enumerate(shapes)
    ]
    assert sorted(b.rows.tolist() for b in micro_batches(groups, 1000)) == [[0, 1], [2]]


def test_a_whole_group_is_never_cut():
    groups = [group([], 5, [3, 4], 0), group([], 2, [1, 1], 1)]
    made = micro_batches(groups, 6, whole=True)
    assert [b.rows.tolist() for b in made] == [[0, 1], [2, 3]]
    assert micro_batches(groups, 6, keep=torch.tensor([True, False, False, False]), whole=True)[
        0
    ].rows.tolist() == [0]


@pytest.mark.parametrize("budget", [1, 40, 70])
def test_the_cut_does_not_change_the_gradient(budget):
    groups = [
        group([image(56, 84, 0)], 11, [5, 9, 14], 1),
        group([], 9, [3, 7, 1, 12], 0),
        group([image(56, 84, 0)], 4, [6], 2),
    ]
    advantages = torch.linspace(-1, 1, 8)
    model = new_model()

    def gradient(batches):
        model.zero_grad()
        for batch in batches:
            scores = completion_scores(model, batch.groups)
            (scores.logprobs * advantages[batch.rows, None]).sum().backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    whole = gradient(micro_batches(groups, budget=1000))
    batches = micro_batches(groups, budget)
    assert len(batches) > 1
    for name, actual in gradient(batches).items():
        scale = max(1.0, whole[name].abs().max().item())
        assert (actual - whole[name]).abs().max() <= 1e-5 * scale, name
