"""Styles of reward functions: which of them a function is taken for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from mmr1.registry import Registry
from mmr1.rewards.plugins import styles
from mmr1.rewards.plugins.styles import Dialect, RewardStyle, Signature, detect


def _declared(function: Callable[..., Any], options: Mapping[str, Any]) -> Dialect:
    return Dialect("Declared", "item", lambda items: ((), {}))


STYLE = RewardStyle(
    "Declared",
    ("def pay(question, completions)",),
    (
        Signature(("completions", "query"), _declared),
        Signature(("completions",), _declared, of_class=True),
    ),
    foreign={"trajectory": "Declared has trajectories, and mmr1 has none"},
)


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The styles of the core, and the one of this file."""
    builtin = styles.REWARD_STYLES.builtin
    registry = Registry("reward style", {**builtin, "declared": f"{__name__}:STYLE"})
    monkeypatch.setattr(styles, "REWARD_STYLES", registry)
    styles.reward_styles.cache_clear()
    yield
    styles.reward_styles.cache_clear()


def function_of(*names: str) -> Callable[..., Any]:
    return eval(f"lambda {', '.join(names)}: None")  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("names", "style"),
    [
        (("completions",), "TRL"),
        (("completions", "solution"), "TRL"),
        (("completions", "query"), "Declared"),
        (("completion", "completions", "query"), "mmr1"),
        (("completion", "solution_str", "ground_truth"), "mmr1"),
        (("solution_str", "ground_truth"), "verl"),
        (("predict_str", "ground_truth"), "EasyR1"),
        (("reward_inputs",), "EasyR1"),
    ],
)
def test_most_parameters_tell_the_style(names: tuple[str, ...], style: str) -> None:
    assert detect(function_of(*names), {}).name == style


def test_signature_of_classes_is_for_classes_unless_stated() -> None:
    function = function_of("completions")
    assert detect(function, {}, of_class=True).name == "Declared"
    assert detect(function, {}).name == "TRL"
    assert detect(function, {}, style="declared").name == "Declared"


def test_unknown_parameters_name_remedy_and_signatures() -> None:
    known = r"(?s)trajectories, and mmr1 has none; known are:\n  mmr1 .*\n  Declared   def pay"
    with pytest.raises(ValueError, match=known):
        detect(function_of("trajectory"), {})
    with pytest.raises(ValueError, match="which live in separate processes"):
        detect(function_of("environments"), {})
    with pytest.raises(ValueError, match="which live in separate processes"):
        detect(function_of("completions", "environments"), {})
