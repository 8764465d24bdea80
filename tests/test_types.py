"""The dataclasses of a step, as processes hand them on."""

from __future__ import annotations

import copy
import pickle

import pytest

from mmr1.types import (
    Completion,
    Message,
    Prompt,
    Reward,
    RolloutGroup,
    Sample,
    ScoredGroup,
    Span,
    Status,
    TextPart,
)

MESSAGE = Message("user", (TextPart("What is 1 and 1?"),))
PROMPT = Prompt(Sample("a", (MESSAGE,), "2", task="sums"), "What?", (1, 2))
# Arrays have no equality, and nothing depends on their type here.
TOKENS = (3, 4)
COMPLETION = Completion(
    TOKENS,  # type: ignore[arg-type]
    (-1.0, -2.0),  # type: ignore[arg-type]
    "two",
    True,
    5,
    spans=(Span("assistant", 2, "two"),),
    reward=0.5,
    failure=(Status.TIMEOUT, "late"),
)
REWARD = Reward(None, Status.ERROR, {"format": 1.0, "math": None}, "broken")
GROUP = ScoredGroup(RolloutGroup(PROMPT, (COMPLETION,)), (REWARD,), Reward(1.0), (((1, 0.5),),))


@pytest.mark.parametrize("value", [GROUP, COMPLETION, REWARD, PROMPT, PROMPT.sample, MESSAGE])
@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_what_is_pickled_comes_back_whole(value, protocol):
    again = pickle.loads(pickle.dumps(value, protocol))
    assert again == value
    assert type(again) is type(value)
    assert copy.deepcopy(value) == value


def test_a_state_of_another_version_is_refused():
    """One with fewer fields would leave some unset."""
    with pytest.raises(ValueError, match="shorter"):
        REWARD.__setstate__((1.0,))  # type: ignore[attr-defined]
