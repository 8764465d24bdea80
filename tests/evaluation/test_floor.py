"""The floor: what answers without sense score, by hand on a few rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmr1.config import ScoringConfig, read_rewards
from mmr1.evaluation.floor import GOLD, measure_floor, policies
from mmr1.rewards import build_composite_reward
from mmr1.types import MediaRef, Message, Sample, TextPart

ANSWERS = ["A", "A", "A", "B", "A", "C"]
QUESTION = "Which?\nA. red\nB. dark green\nC. blue"
CONTAINS = """
def reward(completion: str, answer) -> float:
    words = completion.split("<answer>")[-1].replace("</answer>", "").replace(",", " ").split()
    return float(str(answer) in words)
"""


def rows(answers, question=QUESTION):
    return [
        Sample(f"{n}", (Message("user", (TextPart(question),)),), answer)
        for n, answer in enumerate(answers)
    ]


def measured(samples, **functions):
    config = read_rewards(functions), ScoringConfig(workers=1, timeout_s=30)
    with build_composite_reward(*config) as reward:
        return measure_floor(reward, samples)


def test_floor_is_frequent_letter_of_other_half() -> None:
    floor = measured(rows(ANSWERS), choice={})
    scores = {score.policy: score.mean for score in floor.scores}
    assert floor.gold.mean == 1.0
    assert scores["always 'A'"] == pytest.approx(4 / 6)
    assert scores["longest option"] == pytest.approx(1 / 6)
    assert scores["nothing"] == 0.0
    assert floor.best.mean == pytest.approx(4 / 6)
    assert not floor.findings


def test_reward_that_pays_several_answers_is_found(tmp_path: Path) -> None:
    (tmp_path / "contains.py").write_text(CONTAINS)
    use = {"type": f"{tmp_path}/contains.py:reward", "sandbox": None}
    floor = measured(rows(ANSWERS), contains=use)
    assert floor.best.mean < 1.0
    assert "all options' gets 1.000" in floor.findings[0]


def test_reward_that_ignores_the_answer_is_found() -> None:
    floor = measured(rows(ANSWERS), format={})
    assert "do not pay for the answer" in " ".join(floor.findings)


def test_policies_do_not_read_their_own_gold() -> None:
    made = policies(rows(["x", "y"]))
    assert made["most frequent answer"] == ["y", "x"]
    assert GOLD not in made


def test_boxes_come_from_sizes_without_media() -> None:
    picture = MediaRef("image", Path("nowhere.png"), size=(100, 60))
    sample = Sample("b", (Message("user", (picture, TextPart("Where?"))),), [10, 6, 40, 20])
    made = policies([sample])
    assert made["whole picture"] == ["[0, 0, 100, 60]"]
    assert made["box in the middle"] == ["[25, 15, 75, 45]"]


def test_floor_of_configuration_is_printed(digits: Path, tmp_path: Path, mmr1) -> None:
    config = tmp_path / "run.yaml"
    tree = {
        "model": {"path": "none"},
        "data": {"train": str(digits / "rl.jsonl")},
        "rewards": {"format": 0.5, "math": 1.0},
        "scoring": {"workers": 1},
    }
    config.write_text(json.dumps(tree))
    code, out, error = mmr1("reward", "floor", config, "--rows", 40)
    assert code == 0, error
    assert "the gold answer gets 1.500" in out
