"""Reward models as reward functions: what is refused, and where the steps of an answer end."""

from __future__ import annotations

import pytest

from mmr1.data.responses import group_of_responses
from mmr1.trainer.sampling.reward_models import step_ends, token_at
from mmr1.trainer.train import run_training
from tests.trainer.run_configs import config_of


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "rewards.rm.path' is missing"),
        (", path: nowhere", "'nowhere' is not a reward model .*docs/preferences.md trains one"),
    ],
)
def test_what_is_no_reward_model_is_refused(options, message, tiny_model, digits, tmp_path):
    override = f"rewards={{rm: {{type: reward_model{options}}}}}"
    with pytest.raises(ValueError, match=message):
        run_training(config_of(tiny_model, digits / "rl.jsonl", digits, tmp_path / "out", override))
    assert not (tmp_path / "out").exists()


def test_where_steps_end():
    assert step_ends("a\n\nbc\n\n\n\nd", "\n\n") == [1, 5, 10]
    assert step_ends("", "\n\n") == []
    assert step_ends("a ки b ки", "ки") == [2, 7]


@pytest.mark.parametrize("texts", [["One.", "Two is", "three!"], ["x", "y"], ["12", "34", "56 7"]])
def test_a_step_ends_at_the_token_that_completes_it(texts, parts):
    family = parts[0]
    decode = family.chat.completion_text
    text = "\n\n".join(texts)
    (completion,) = group_of_responses(family, parts[3][0].group.prompt, [text]).completions
    ids = completion.token_ids.tolist()
    ends = step_ends(text, "\n\n")
    for place, end in enumerate(ends):
        index = token_at(completion, end, decode)
        if place == len(ends) - 1:
            assert ids[index] == family.tokenizer.eos_token_id
        else:
            assert decode(ids[: index + 1]).startswith(text[:end])
            assert not decode(ids[:index]).startswith(text[:end])
