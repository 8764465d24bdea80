"""What an experience holds of completions, by hand: who learns, from what, under which view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from mmr1.config import AlgorithmConfig
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.forward.sequences import completion_mask
from mmr1.trainer.sampling.experience import (
    Models,
    add_rewards,
    after_picture,
    build_experience,
    normalised,
)
from mmr1.types import (
    Completion,
    Experience,
    MediaRef,
    Prompt,
    Reward,
    RolloutGroup,
    Sample,
    ScoredGroup,
    Span,
    Status,
)

PICTURE = MediaRef("image", data=b"a picture")


def completion(length: int, *spans: Span, **keys: object) -> Completion:
    ids = np.arange(length, dtype=np.int64)
    return Completion(ids, -ids.astype(np.float32), "", False, 0, spans, **keys)


def scored(rewards: list[float | None], *completions: Completion) -> ScoredGroup:
    prompt = Prompt(Sample("0", ()), "", np.arange(3), ())
    invalid = Reward(None, Status.ERROR)
    given = tuple(
        invalid if r is None else Reward(r, components={"environment": 0.0}) for r in rewards
    )
    return ScoredGroup(RolloutGroup(prompt, completions), given)


class EvenPolicy:
    """A policy under which every token has log-prob 0."""

    def logprobs(self, groups: Sequence[RolloutGroup]) -> torch.Tensor:
        return torch.zeros(completion_mask(groups).shape)


def experience(groups: list[ScoredGroup], **config: object) -> Experience:
    algorithm = build_algorithm(AlgorithmConfig(**config), max_tokens=8)
    return build_experience(groups, algorithm, Models(EvenPolicy()))


def learners(batch: Experience) -> list[list[bool]]:
    return [part.learning.tolist() for part in batch.mini_batches]


FOUR = [scored([1.0, 0.0], completion(2), completion(3)), scored([1.0, 1.0], *[completion(2)] * 2)]


def test_only_sequences_with_a_signal_learn():
    """A group of equal rewards has no gradient, unless another term of the loss has one."""
    assert learners(experience(FOUR)) == [[True, True, False, False]]
    assert learners(experience(FOUR, entropy={"coef": 0.1})) == [[True] * 4]


def test_mini_batch_without_signal_learns_from_first_group():
    """So that each step logs something; a mini-batch with a signal gets nothing added."""
    flat = scored([0.5, 0.5], completion(2), completion(4))
    groups = [FOUR[0], flat, FOUR[1]]
    assert learners(experience(groups, ppo_mini_batch_size=1)) == [
        [True, True, False, False, False, False],
        [False, False, True, True, False, False],
        [False, False, False, False, True, True],
    ]
    assert learners(experience([flat, FOUR[1]])) == [[True, True, False, False]]


def test_invalid_reward_counts_nowhere():
    batch = experience([scored([1.0, None, 0.0], *[completion(2)] * 3)], name="dr_grpo")
    assert batch.tokens.mask.tolist() == [[True] * 2, [False] * 2, [True] * 2]
    assert batch.tokens.advantages.tolist() == [[0.5] * 2, [0.0] * 2, [-0.5] * 2]


def test_completions_under_another_view_are_marked():
    """At each of their places; without any, nothing is marked."""
    assert experience(FOUR).tokens.other_view is None
    noisy = completion(3, view={"noise": 0.5})
    batch = experience([scored([1.0, 0.0], completion(2), noisy)])
    assert batch.tokens.other_view.tolist() == [[False] * 3, [True] * 3]


def test_versions_are_of_each_token():
    """A completion of one version has that of the completion; -1 stands behind its end."""
    assert experience(FOUR).tokens.versions is None
    two = completion(4, versions=((5, 1), (6, 3)))
    batch = experience([scored([1.0, 0.0], replace(completion(2), policy_version=4), two)])
    assert batch.tokens.versions.tolist() == [[4, 4, -1, -1], [5, 6, 6, 6]]


def turns(*rewards: float | None) -> list[Span]:
    """Turns of two tokens with these rewards, and an answer of one token between them."""
    spans = [Span("assistant", 2, "", reward=reward) for reward in rewards]
    return [s for span in spans for s in (span, Span("tool", 1, "seen"))][:-1]


@pytest.mark.parametrize("total", [0.0, 0.8])
def test_turns_add_up_to_the_reward_also_of_zero(total):
    """The last turn has what is left: 0.8 - 0.3, or 0 - 0.3; weight 1, gamma 1, no deviation."""
    turn_advantages = {"type": "gigpo", "gamma": 1.0, "step_advantage_w": 1.0}
    keys = {**turn_advantages, "scale_rewards": "none", "group_by": "turn"}
    first, second = completion(5, *turns(0.3, None)), completion(5, *turns(None, 1.0))
    group = scored([total, 1.0], first, second)
    weights = {"environment": 1.0}
    algorithm = build_algorithm(AlgorithmConfig(advantage=keys), reward_weights=weights)
    batch = build_experience([group], algorithm, Models(None))
    whole = (total - 1.0) / 2
    # Returns of the first turns: total and 1; of the last: total - 0.3 and 1.
    last = (total - 0.3 - 1.0) / 2
    expected = [[2 * whole] * 2 + [0.0] + [whole + last] * 2]
    expected += [[-value for value in expected[0]]]
    torch.testing.assert_close(batch.tokens.advantages, torch.tensor(expected))


def test_tokens_after_a_picture_are_the_policys_behind_the_first():
    shown = Span("tool", 2, "", media=(PICTURE,))
    ask, answer = Span("assistant", 2, ""), Span("assistant", 1, "")
    with_picture = completion(8, ask, Span("tool", 1, ""), answer, shown, ask)
    again = completion(7, shown, answer, shown, ask)
    without = completion(5, ask, Span("tool", 1, ""), ask)
    groups = [scored([0.0] * 4, with_picture, without, again, completion(3)).group]
    marked = after_picture(groups)
    assert [row.nonzero()[:, 0].tolist() for row in marked] == [[6, 7], [], [2, 5, 6], []]
    assert after_picture([replace(groups[0], completions=(without, completion(3)))]) is None


def test_running_moments_are_those_of_all_rewards():
    """Batches of one, of several and of none, against the mean and deviation of all at once."""
    values = torch.tensor([0.5, 1.0, -2.0, 4.0, 0.25, 0.0])
    state: dict[str, float] = {}
    for batch in (values[:0], values[:1], values[1:4], values[4:4], values[4:]):
        add_rewards(state, batch)
    expected = (values - values.mean()) / (values.std() + 1e-6)
    torch.testing.assert_close(normalised(values, state), expected)
    assert normalised(values[:1], {}).tolist() == [0.5 / 1e-6]
