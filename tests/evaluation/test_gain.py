"""What a gain is made of: by hand, and of a model against itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mmr1.config.file import config_from
from mmr1.evaluation.gain import PARTS, donors_of, explain_gain, parts_of_gain
from mmr1.types import MediaRef, Message, Sample


def right(short: list[float], **views: list[float]) -> dict[str, np.ndarray]:
    """A model whose answers do not depend on what is not named."""
    same = {view: views.get(view, short) for view in ("S", "L", "T", "B")}
    return {name: np.array(values) for name, values in {**same, "other": [0.0] * 4}.items()}


NOTHING = right([0, 0, 0, 0])
FOUR = [["a"], ["b"], ["c"], ["d"]]


@pytest.mark.parametrize(
    ("part", "after"),
    [
        ("prior", right([1, 0, 0, 1])),
        ("picture", right([1, 0, 0, 1], B=[0, 0, 0, 0])),
        ("format", right([1, 0, 0, 1], L=[0, 0, 0, 0], T=[0, 0, 0, 0], B=[0, 0, 0, 0])),
        ("length", right([1, 0, 0, 1], T=[0, 0, 0, 0], B=[0, 0, 0, 0])),
    ],
)
def test_gain_is_its_one_part(part: str, after: dict[str, np.ndarray]) -> None:
    gain = parts_of_gain(FOUR, NOTHING, after)
    values = {each.name: each.value for each in gain.parts}
    assert (gain.before, gain.after) == (0.0, 0.5)
    expected = {name: 0.5 * (name in ("gain", part)) for name in PARTS}
    assert values == expected


def test_parts_sum_to_gain() -> None:
    draw = np.random.default_rng(1)
    models = [
        {view: draw.integers(0, 2, 40).astype(float) for view in (*"SLTB", "other")}
        for _ in range(2)
    ]
    gain = parts_of_gain([[str(n // 4)] for n in range(40)], *models)
    values = {part.name: part.value for part in gain.parts}
    assert sum(values[name] for name in list(PARTS)[1:5]) == pytest.approx(values["gain"])
    assert gain.pictures == 10
    assert all(part.low <= part.value <= part.high for part in gain.parts)


def test_interval_draws_rows_of_one_picture_together() -> None:
    """Four equal rows of one picture are one observation: the interval has no width."""
    (whole, *_), apart = (
        parts_of_gain(media, NOTHING, right([1, 1, 0, 0])).parts for media in ([["a"]] * 4, FOUR)
    )
    assert whole.low == whole.high == 0.5
    assert apart[0].low < 0.5 < apart[0].high


def test_rows_without_a_reward_are_left_out_of_both() -> None:
    gain = parts_of_gain(FOUR, NOTHING, right([1, np.nan, 0, 1]))
    assert gain.rows == 3
    assert gain.parts[0].value == pytest.approx(2 / 3)


def test_donors_have_another_answer_and_as_many_media() -> None:
    def sample(answer: str, *names: str) -> Sample:
        media = tuple(MediaRef("image", Path(name)) for name in names)
        return Sample(answer, (Message("user", media),), answer)

    samples = [sample("1", "a"), sample("1", "b"), sample("2", "c"), sample("3", "d", "e")]
    donors = donors_of([*samples, sample("4")])
    assert [donor and donor.answer for donor in donors] == ["2", "2", "1", None, None]


def test_model_against_itself_gains_nothing(tiny_model: Path, digits: Path) -> None:
    config = config_from(
        {
            "model": {"path": str(tiny_model), "dtype": "float32"},
            "data": {"train": str(digits / "rl.jsonl")},
            "rollout": {"engine": "hf", "max_prompt_length": 96, "max_response_length": 8},
            "rewards": {"format": 0.5, "math": 1.0},
            "scoring": {"workers": 1},
            "trainer": {"validation": {"data": str(digits / "eval.jsonl")}},
            "eval": {"limit": 6},
        },
        command="eval",
    )
    gain = explain_gain(config, str(tiny_model), str(tiny_model))
    assert gain.rows == 6
    assert [part.rows for part in gain.parts] == [0] * len(PARTS)
