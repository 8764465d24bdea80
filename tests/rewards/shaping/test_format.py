from __future__ import annotations

import time

import pytest

from mmr1.config import read_rewards
from mmr1.rewards.builtin.shaping import format
from mmr1.rewards.reading.extract import extract_answer, last_boxed, without_thinking

GOOD = [
    "<think>a</think><answer>b</answer>",
    "<think>a</think>\n<answer>b</answer>",
    "  <think>\na\n\nb\n</think>\n\n\t<answer>\nb\n</answer>\n",
    "<think></think><answer>b</answer>",
    "<think>x < 3 and y > 2, <b>bold</b></think><answer>x<3</answer>",
    "<think>日本</think><answer>語</answer>",
]
BAD = [
    "",
    "b",
    "<answer>b</answer>",
    "<think>a</think>",
    "<think>a</think><answer></answer>",
    "<think>a</think><answer> \n</answer>",
    "<think>a</think><answer>b",
    "<think>a</think>answer>b</answer>",
    "<think>a<answer>b</answer>",
    "a</think><answer>b</answer>",
    "<answer>b</answer><think>a</think>",
    "<think>a</think><answer>b</answer>c",
    "c<think>a</think><answer>b</answer>",
    "<think>a</think>c<answer>b</answer>",
    "<think>a</think><answer>b</answer><answer>c</answer>",
    "<think>a</think><think>b</think><answer>c</answer>",
    "<think>a<think>b</think></think><answer>c</answer>",
    "<think>a</think><answer>b<answer>c</answer></answer>",
    "<think>a</think><answer><think>b</think></answer>",
    "<think>a<answer>b</answer></think><answer>c</answer>",
    "<think>a<answer>b</think></answer>",
    "<think><answer>b</answer></think>",
    "<THINK>a</THINK><answer>b</answer>",
    "<think >a</think ><answer>b</answer>",
    "<think>a</think></answer>b<answer>",
    "<think>a</think><answer>b</answer></answer>",
    "</think><think>a</think><answer>b</answer>",
    "```<think>a</think><answer>b</answer>```",
]


@pytest.mark.parametrize("completion", GOOD)
def test_good_shapes(completion: str) -> None:
    assert format(completion) == 1.0


@pytest.mark.parametrize("completion", BAD)
def test_bad_shapes(completion: str) -> None:
    assert format(completion) == 0.0


@pytest.mark.parametrize(
    ("template", "good", "bad"),
    [
        ("answer-only", "<answer>4</answer>", "<think>a</think><answer>4</answer>"),
        ("boxed", r"so \boxed{4}", r"\boxed{4} or \boxed{5}"),
        ("boxed", r"\boxed{\frac{1}{2}}", r"\boxed{}"),
        ("boxed", r"\boxed{4}", r"<think>a</think>\boxed{4}"),
        ("think-boxed", r"<think>a</think> so \boxed{4}", r"so \boxed{4}"),
        ("think-boxed", r"<think>\boxed{3}</think>\boxed{4}", r"<think>a</think>\boxed{4"),
    ],
)
def test_other_templates(template: str, good: str, bad: str) -> None:
    assert format(good, template=template) == 1.0
    assert format(bad, template=template) == 0.0


def test_partial_credit_only_when_asked_for() -> None:
    assert format("<think>a</think>", partial=True) == 0.25
    assert format(GOOD[0], partial=True) == 1.0
    assert format("", partial=True) == 0.0


def test_an_unknown_template_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rewards\.format\.template"):
        read_rewards({"format": {"template": "xml"}})


@pytest.mark.parametrize(
    ("completion", "where", "answer"),
    [
        ("<think>1</think><answer>2</answer>", "auto", "2"),
        ("<answer>1</answer> no <answer> 2 </answer>", "auto", "2"),
        (r"<answer>it is \boxed{\frac{1}{2}}</answer>", "auto", r"\frac{1}{2}"),
        (r"<answer>\boxed{1} and \boxed{2}</answer>", "auto", "2"),
        (r"so \boxed{5}", "auto", "5"),
        (r"so \boxed{5}", "answer", None),
        ("so 5", "auto", None),
        ("so 5", "whole", "so 5"),
        ("<think>5</think> 6", "whole", "6"),
        ("<think><answer>5</answer></think>", "auto", None),
        (r"<think>\boxed{5}</think>", "auto", None),
        ("<think>a<think>b</think><answer>9</answer></think>", "auto", None),
        ("begun by the prompt</think><answer>5</answer>", "auto", "5"),
        ("<answer>4</answer><think>never closed", "auto", "4"),
        ("<answer></answer>", "auto", None),
        ("<answer>5", "auto", None),
        (r"\boxed{1", "auto", None),
        (r"<answer>\boxed{\{1,2\}}</answer>", "auto", r"\{1,2\}"),
    ],
)
def test_extraction(completion: str, where: str, answer: str | None) -> None:
    assert extract_answer(completion, where) == answer  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "<answer>" * 120_000,
        r"\boxed{" * 150_000,
        "<think>" * 150_000 + "</think>" * 150_000,
        r"\boxed{" * 60_000 + "}" * 60_000,
        "<think></think>" * 70_000,
        "{" * 10**6 + r"\boxed{1}",
    ],
    ids=range(6),
)
def test_a_megabyte_of_tags_takes_no_time(text: str) -> None:
    start = time.monotonic()
    format(text)
    extract_answer(text)
    without_thinking(text)
    last_boxed(text)
    assert time.monotonic() - start < 3.0
