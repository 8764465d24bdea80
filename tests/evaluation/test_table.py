"""The tables of an evaluation at 80 columns: every number whole, in few tables."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import product

import pytest
from rich.console import Console

from mmr1.evaluation import table
from mmr1.evaluation.benchmarks import Results
from mmr1.trainer.validation.evaluate import Evaluation, Mode, Share


def mode(sampled: bool) -> Mode:
    several = {"1": 0.5, "2": 0.625, "8": 0.875} if sampled else {}
    by = {kind: Share(50, 0.5, (0.36, 0.64)) for kind in ("geometry", "counting")}
    components = {"math": 0.513, "format": 0.997, "temporal_contrast": 0.111}
    majority = 0.611 if sampled else None
    return Mode(
        0.512, (0.478, 0.546), 1319, 217, 3, 1234.5, components, {}, several, majority, None, by
    )


def results(models: list[str], datasets: list[str]) -> Results:
    modes = {"greedy": mode(False), "sampled": mode(True)}
    return {pair: Evaluation(100, modes, []) for pair in product(models, datasets)}


def printed(found: Results, width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    file = io.StringIO()
    monkeypatch.setattr(table, "Console", lambda **o: Console(file=file, **{**o, "width": width}))
    table.print_results(found, [], "runs/eval")
    return file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 137])
@pytest.mark.parametrize("models", [[""], ["Qwen2.5-VL-3B-Instruct", "after-grpo-step-300"]])
def test_numbers_are_whole_at_any_width(monkeypatch, width, models):
    text = printed(results(models, ["mathvista_testmini", "geoqa"]), width, monkeypatch)
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines)
    assert "…" not in text
    rows = len(models) * 2 * 2
    for number in ("0.512", "0.478 to 0.546", "1319", "0.165", "1234.5", "0.513", "0.997", "0.111"):
        assert sum(number in line for line in lines) == rows, number
    for number in ("0.625", "0.875", "0.611"):
        assert sum(number in line for line in lines) == rows // 2, number
    for head in ("truncated", "invalid", "completions", "temporal_contrast", "pass@8"):
        assert sum(head in line.split() for line in lines) >= 1, head
    assert "model" not in text or models != [""]


def test_accuracy_of_zero_names_the_threshold(monkeypatch):
    partial = replace(mode(False), accuracy=0.0, at={"1": 0.0}, value_mean=0.43)
    found = {("", "boxes"): Evaluation(100, {"greedy": partial}, [])}
    assert "no answer reached 1 (eval.accuracy_thresholds)" in printed(found, 200, monkeypatch)
    assert "their mean value is 0.430" in printed(found, 200, monkeypatch)
    reached = {("", "boxes"): Evaluation(100, {"greedy": replace(partial, at={"1": 0.1})}, [])}
    assert "no answer reached" not in printed(reached, 200, monkeypatch)


def test_one_table_where_there_is_room(monkeypatch):
    text = printed(results([""], [""]), 200, monkeypatch)
    assert text.count("decoding") == 2  # of the scores, and of the kinds of prompt
