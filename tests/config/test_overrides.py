"""Overrides are read by the type of their key."""

from __future__ import annotations

from types import NoneType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmr1.config.file import config_from, load
from mmr1.config.overrides import kinds_of, nested, read_overrides
from tests.config.keys import every_key

KEYS = sorted({key.path for key in every_key() if "NAME" not in key.path})
TEXT_KEYS = [key for key in KEYS if str in kinds_of(key) and kinds_of(key) <= {str, NoneType}]
TEXT = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: "${" not in text)
MODEL = {"model": {"path": "m"}}


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(TEXT_KEYS), TEXT)
def test_text_override_is_that_text(key, text):
    values = read_overrides([f"{key}={text}"])
    nothing = text in ("", "null") and NoneType in kinds_of(key)
    assert values == {key: None if nothing else text}


@settings(deadline=None, max_examples=50)
@given(TEXT.filter(lambda text: text not in ("", "null")))
def test_text_reaches_the_configuration_unchanged(text):
    config = config_from(MODEL, [f"data.system_prompt={text}"])
    assert config.data.system_prompt == text


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rewards={format:1.0}", "with a space after the colon"),
        ("data.chat_template_kwargs={enable_thinking:false}", "with a space after the colon"),
        ("rollout.n=#1", "YAML reads no value in it"),
        ("rollout.n=* x", "override 'rollout.n=* x' is not valid YAML"),
        ("rollout.m=* x", "unknown key 'rollout.m'"),
        ("optimizer.betas=3", "'optimizer.betas': it must be a list"),
        ("trainer=3", "'trainer': it must be a mapping"),
        ("model.lora=3", "its keys must tell which of new, stored it is"),
    ],
)
def test_override_without_valid_value_is_refused(override, said):
    with pytest.raises(ValueError, match=r".") as error:
        config_from(MODEL, [override])
    assert said in str(error.value)


@pytest.mark.parametrize("value", ["{a: {b: [1]}}", "[[1]]", "-3.5"])
def test_messages_show_no_python_type(value):
    """Every key is given the value in turn; a key that takes it has no message."""
    words = ("tuple", "dict", "discriminator", "object_type", "full_key", "instance of")
    refused = 0
    for key in KEYS:
        try:
            config_from(MODEL, [f"{key}={value}"])
        except ValueError as error:
            refused += 1
            assert not [word for word in words if word in str(error)], str(error)
    assert refused > len(KEYS) / 2


ENTRIES = st.dictionaries(
    st.text("abcdeg_", min_size=1), st.integers(-9, 9) | st.booleans(), max_size=4
)


@settings(deadline=None, max_examples=50)
@given(ENTRIES, ENTRIES)
def test_whole_mapping_replaces_and_dotted_key_changes_one(below, above):
    file: dict[str, Any] = {**MODEL, "data": {"chat_template_kwargs": below}}
    flow = ", ".join(f"{key}: {str(value).lower()}" for key, value in above.items())
    whole = config_from(file, [f"data.chat_template_kwargs={{{flow}}}"])
    assert whole.data.chat_template_kwargs == above
    dotted = [f"data.chat_template_kwargs.{k}={str(v).lower()}" for k, v in above.items()]
    assert config_from(file, dotted).data.chat_template_kwargs == {**below, **above}


def test_reward_functions_are_replaced_or_one_is_changed(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("model: {path: m}\nrewards: {format: 0.5, math: 1, exact: 1}\n")
    whole = load(path, ["rewards={iou: {weight: 2}}"]).config.rewards
    assert list(whole) == ["iou"]
    one = load(path, ["rewards.math.weight=2"]).config.rewards
    assert {name: f.weight for name, f in one.items()} == {"format": 0.5, "math": 2, "exact": 1}


def test_dotted_keys_join_under_one_mapping():
    tree = nested({"a.b": 1, "a.c.d": 2, "e": {"f": 3}})
    assert tree == {"a": {"b": 1, "c": {"d": 2}}, "e": {"f": 3}}
