"""What a run prints of each step."""

from pathlib import Path

import pytest

from mmr1.config import Config
from mmr1.trainer.runs.display import Display
from mmr1.trainer.runs.output import RunDirectory
from mmr1.trainer.runs.step import Step


@pytest.mark.parametrize("invalid", [0.0, 3.0])
def test_completions_without_a_valid_reward_are_shown_once_there_are_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], invalid: float
) -> None:
    config = Config(model={"path": "x"}, trainer={"output_dir": str(tmp_path), "max_steps": 1})
    stats = {"step": 1.0, "reward/mean": 0.5, "reward/invalid": invalid, "reward/math": 0.25}
    with (
        RunDirectory(config) as directory,
        Display(config.trainer, directory, ["math"]) as shown,
    ):
        shown.show(Step(int(stats["step"]), stats))
    line = "step     1/1  reward 0.500  math 0.250"
    expected = f"{line}  invalid 3.000" if invalid else line
    assert capsys.readouterr().out.splitlines()[-1] == expected
