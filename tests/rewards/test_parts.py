"""Every reward: its keys, its example, and the same file as a user's own."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from mmr1.config import ScoringConfig, read_rewards
from mmr1.rewards import build_composite_reward, reward
from mmr1.rewards.item import Job
from mmr1.types import Reward
from tests.rewards.helpers import item

NEAR = """
from mmr1.rewards import reward


@reward("near", example={"completion": "9", "answer": 10, "reward": 0.9})
def near(completion: str, answer: float, *, scale: float = 10.0) -> float:
    \"\"\"1 less the distance from the gold answer.

    Args:
        scale: Distance at which nothing is paid.
    \"\"\"
    return 1 - abs(float(completion) - answer) / scale
"""
PARTS = [pytest.param(part, id=name) for name, part in reward.parts.items()]
CALLED = [pytest.param(part, id=name) for name, part in reward.parts.items() if part.example]


@pytest.mark.parametrize("part", PARTS)
def test_reward_describes_its_keys(part):
    fields = part.section.model_fields.items()
    assert all(field.description for key, field in fields if key != "type")
    assert part.section.__doc__


@pytest.mark.parametrize("part", CALLED)
def test_reward_gives_number_of_its_example(part):
    example = dict(part.example)
    wanted, settings = example.pop("reward"), example.pop("settings", {})
    made = reward.build(part.section(**settings))(**example)
    if isinstance(made, Job):
        module, _, name = made.target.partition(":")
        made = getattr(import_module(module), name)(*made.args)
    assert (made.value if isinstance(made, Reward) else made) == pytest.approx(wanted)


@pytest.mark.parametrize("taken", ["weight", "gate", "sandbox", "timeout_s"])
def test_setting_named_like_a_key_is_refused(taken):
    text = NEAR.replace("scale", taken)
    with pytest.raises(ValueError, match=f"its setting {taken} has the name of a key"):
        exec(compile(text, "near.py", "exec"), {"__name__": __name__})


def test_declared_file_of_a_user_has_typed_settings(tmp_path: Path):
    (tmp_path / "own.py").write_text(NEAR)
    own = {"type": f"{tmp_path}/own.py:near"}
    with build_composite_reward(read_rewards({"own": {**own, "scale": "4"}})) as scorer:
        assert scorer.score([item("3", 4)])[0].value == 0.75
    for wrong in ({"scale": "wide"}, {"scal": 4}):
        with pytest.raises(ValueError, match="'scal"):
            build_composite_reward(read_rewards({"own": {**own, **wrong}}), ScoringConfig())


def test_reward_of_a_package_is_found_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reward.installed, "_plugins", lambda: {"brevity": "json:dumps"})
    monkeypatch.setattr(reward.installed, "names", lambda: {"brevity": "json:dumps"})
    assert read_rewards({"brevity": 0.5})["brevity"].type == "brevity"
