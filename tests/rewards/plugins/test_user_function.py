from __future__ import annotations

import asyncio
import importlib.util
import inspect
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmr1.config import RewardFunctionConfig, RewardsConfig
from mmr1.rewards import RewardItem, build_composite_reward
from mmr1.types import Reward, Status
from tests.rewards.helpers import item

PLUGINS = Path(__file__).parent / "dialects"
TEXTS = ["<think>1</think><answer>4</answer>", "<answer>5</answer>", "4"]


def items(texts: list[str] = TEXTS) -> list[RewardItem]:
    return [
        item(text, 4, task="count", meta={"colour": "red"}, prompt="How many? ", token_ids=(1, 2))
        for text in texts
    ]


def score(spec: str, found: list[RewardItem], **function: Any) -> list[Reward]:
    timeout_s = function.pop("timeout_s", 5.0)
    config = RewardFunctionConfig(use=spec, **function)
    with build_composite_reward(
        RewardsConfig(functions={"plugin": config}, workers=1, timeout_s=timeout_s)
    ) as scorer:
        return scorer.score([with_source(i) for i in found])


def with_source(one: RewardItem) -> RewardItem:
    from dataclasses import replace

    return replace(one, sample=replace(one.sample, source="unit"))


def load(file: str, function: str) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(file, PLUGINS / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


def direct(file: str, function: str) -> list[float]:
    """The function called by hand, as its own framework would."""
    call = load(file, function)
    rows = [{"response": t, "response_length": 2, "ground_truth": 4} for t in TEXTS]
    if file == "own":
        return [call(t, answer=4, task="count") for t in TEXTS]
    if file == "easyr1_batch":
        return [score["overall"] for score in call(rows)]
    if file == "easyr1_sequential":
        return [call(row)["overall"] for row in rows]
    if file == "easyr1_text":
        return [call(t, 4)["overall"] for t in TEXTS]
    if file == "easyr1_lists":
        return [score["overall"] for score in call(TEXTS, [4] * 3)]
    if file == "verl_single":
        return [call("unit", t, 4, {"colour": "red"})["score"] for t in TEXTS]
    if file == "verl_async":
        return [asyncio.run(call("unit", t, 4, {})) for t in TEXTS]
    if file == "verl_batch":
        return call(["unit"] * 3, TEXTS, [4] * 3, [{}] * 3)
    if file == "openrlhf":
        return call([f"How many? {t}" for t in TEXTS], ["How many? "] * 3, [4] * 3)["rewards"]
    conversations = [[{"role": "assistant", "content": t}] for t in TEXTS]
    if function == "length_reward":
        return call(TEXTS)
    columns = {"problem_type": ["count"] * 3, "colour": ["red"] * 3}
    prompts = [[{"role": "user", "content": "How many?"}]] * 3
    return call(conversations, solution=[4] * 3, prompts=prompts, **columns)


DIALECTS = [
    ("own", "reward"),
    ("easyr1_batch", "compute_score"),
    ("easyr1_sequential", "compute_score"),
    ("easyr1_text", "compute_score"),
    ("easyr1_lists", "compute_score"),
    ("verl_single", "compute_score"),
    ("verl_async", "compute_score"),
    ("verl_batch", "compute_score"),
    ("trl", "accuracy_reward"),
    ("trl", "length_reward"),
    ("openrlhf", "reward_func"),
]


@pytest.mark.parametrize("isolated", [True, False], ids=["isolated", "here"])
@pytest.mark.parametrize(("file", "function"), DIALECTS)
def test_each_dialect_unchanged(file: str, function: str, isolated: bool) -> None:
    rewards = score(f"{PLUGINS / file}.py:{function}", items(), isolated=isolated)
    assert [reward.error for reward in rewards] == [None] * 3
    assert [reward.value for reward in rewards] == pytest.approx(direct(file, function))


def test_other_numbers_of_a_dict_are_logged_apart() -> None:
    rewards = score(f"{PLUGINS}/easyr1_batch.py:compute_score", items())
    assert rewards[0].components == {"plugin": 1.0, "plugin/format": 1.0, "plugin/accuracy": 1.0}
    (log, *_) = score(f"{PLUGINS}/openrlhf.py:reward_func", items())
    assert log.components["plugin/seen"] == 1.0


def test_options_and_columns_reach_the_function() -> None:
    spec = f"{PLUGINS}/verl_batch.py:compute_score"
    assert score(spec, items(), options={"bonus": 0.5})[0].value == 1.5
    spec = f"{PLUGINS}/own.py:shortest"
    assert score(spec, items(["x" * 50]), options={"limit": 100})[0].value == 0.5
    found = [item("x", grid_thw=((1, 4, 6),), meta={"image_path": ["a.png", "b.png"]})]
    assert score(f"{PLUGINS}/trl.py:grid_reward", found)[0].value == 3.0


def test_a_dotted_path() -> None:
    assert score("tests.rewards.plugins.dialects.own:shortest", items(["x" * 25]))[0].value == 0.75


def test_conversations_can_be_asked_for() -> None:
    spec = f"{PLUGINS}/trl.py:length_reward"
    rewards = score(spec, items(), options={"conversational": True})
    assert [reward.value for reward in rewards] == [0.01] * 3  # each is a list of one message


POISON = ["clean", "poison", "clean again"]


@pytest.mark.parametrize(
    ("function", "statuses", "told"),
    [
        ("raises", {Status.ERROR}, "KeyError: 'no such label'"),
        ("hangs", {Status.TIMEOUT}, "no verdict in 1 s"),
        ("hangs_in_c", {Status.TIMEOUT}, "no verdict in 1 s"),
        ("nan", {Status.ERROR}, "returned nan, which is not finite"),
        ("none", {Status.ERROR}, "returned None"),
        ("text", {Status.ERROR}, "returned text ('1.0'), not a number"),
        ("allocates", {Status.ERROR, Status.KILLED}, ""),
        ("exits", {Status.KILLED}, "ended (exit code 0)"),
        ("system_exit", {Status.ERROR}, "SystemExit"),
        ("writes", {Status.ERROR}, "set isolated: false"),
        ("batch_raises", {Status.ERROR}, "one of them is poisoned"),
        ("batch_hangs", {Status.TIMEOUT}, "no verdict in 1 s"),
    ],
)
def test_a_bad_call_costs_the_others_nothing(
    function: str, statuses: set[Status], told: str
) -> None:
    rewards = score(f"{PLUGINS}/bad.py:{function}", items(POISON), timeout_s=1.0)
    assert [rewards[0].value, rewards[2].value] == [1.0, 1.0]
    assert rewards[1].value is None
    assert rewards[1].status in statuses
    assert rewards[1].error is not None
    assert told in rewards[1].error
    assert not Path("/tmp/mmr1-plugin-escaped").exists()


def test_a_gigabyte_of_print_goes_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    rewards = score(f"{PLUGINS}/bad.py:prints_a_gigabyte", items(POISON), timeout_s=30.0)
    assert [reward.value for reward in rewards] == [1.0, 1.0, 1.0]
    assert len(capfd.readouterr().out) < 1000


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("too_few", "returned 2 values for 3 completions"),
        ("not_a_list", "returned float for 3 completions"),
    ],
)
@pytest.mark.parametrize("isolated", [True, False])
def test_a_wrong_number_of_values(function: str, told: str, isolated: bool) -> None:
    rewards = score(f"{PLUGINS}/bad.py:{function}", items(), isolated=isolated)
    assert {reward.status for reward in rewards} == {Status.ERROR}
    assert told in (rewards[0].error or "")


@pytest.mark.parametrize("function", ["raises", "hangs", "nan", "none", "text", "system_exit"])
def test_what_can_be_caught_without_a_sandbox(function: str) -> None:
    start = time.monotonic()
    rewards = score(f"{PLUGINS}/bad.py:{function}", items(POISON), isolated=False, timeout_s=0.5)
    assert [rewards[0].value, rewards[1].value, rewards[2].value] == [1.0, None, 1.0]
    assert time.monotonic() - start < 10


def test_a_loop_without_a_sandbox_does_not_go_on_beside_the_run() -> None:
    threads = set(threading.enumerate())
    score(f"{PLUGINS}/bad.py:hangs", items(POISON), isolated=False, timeout_s=0.2)
    for thread in set(threading.enumerate()) - threads:
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("bad.py:unknown_dialect", "known are:"),
        ("bad.py:NOT_A_FUNCTION", "is a int, not a function"),
        ("bad.py:raise", "did you mean 'raises'"),
        ("missing.py:reward", "no such Python file"),
        ("bad.py", "name the function too"),
    ],
)
def test_a_plugin_that_cannot_be_used_says_so_at_the_start(
    spec: str, told: str, isolated: bool
) -> None:
    with pytest.raises(ValueError, match=told):
        score(f"{PLUGINS}/{spec}", [], isolated=isolated)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'limit'"):
        score(f"{PLUGINS}/own.py:shortest", [], options={"limt": 3})


def test_a_file_with_a_syntax_error(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("def reward(completion, answer)\n    return 1.0\n")
    with pytest.raises(ValueError, match=r"broken.py cannot be imported: SyntaxError.*line 1"):
        score(f"{file}:reward", [])


def test_a_file_that_ends_the_process_when_imported(tmp_path: Path) -> None:
    file = tmp_path / "leaving.py"
    file.write_text("import os\nos._exit(5)\n")
    with pytest.raises(ValueError, match=r"leaving.py.*exit code 5"):
        score(f"{file}:reward", [])


def test_examples_are_all_here() -> None:
    assert {f"{file}.py" for file, _ in DIALECTS} == {
        path.name for path in PLUGINS.glob("*.py") if path.name not in ("bad.py", "__init__.py")
    }
    assert all(inspect.isfunction(load(file, name)) for file, name in DIALECTS)
