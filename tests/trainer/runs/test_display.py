"""What a run prints of each step."""

from pathlib import Path

import pytest

from mmr1.config import Config
from mmr1.progress import report_activity
from mmr1.trainer.runs.display import Display
from mmr1.trainer.runs.output import RunDirectory
from mmr1.trainer.runs.step import Step


@pytest.mark.parametrize("invalid", [0.0, 3.0])
def test_completions_without_a_valid_reward_are_shown_once_there_are_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], invalid: float
) -> None:
    config = Config(model={"path": "x"}, trainer={"output_dir": str(tmp_path), "max_steps": 1})
    stats = {
        "step": 1.0,
        "reward/mean": 0.5,
        "reward/num_invalid": invalid,
        "rewards/math/mean": 0.25,
    }
    with (
        RunDirectory(config) as directory,
        Display(config.trainer, directory, ["math"]) as shown,
    ):
        shown.show(Step(int(stats["step"]), stats))
    line = "step 1/1  reward 0.500  math 0.250"
    expected = "step 1/1  reward 0.500  invalid 3  math 0.250" if invalid else line
    assert capsys.readouterr().out.splitlines()[-1] == expected


METRICS = {
    "reward/mean": 0.5, "rewards/math/mean": 0.25, "rewards/format/mean": 0.75,
    "completions/frac_truncated": 0.125,
    "reward/frac_zero_std": 0.5, "loss": 0.01, "entropy": 1.5, "completions/mean_length": 120.0,
    "rollout/logprob_diff_mean": 1e-6, "grad_norm": 0.2, "time/step": 4.25,
}  # fmt: skip


def test_a_line_of_metrics_fits_the_terminal_and_is_whole_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the output for a terminal
    monkeypatch.setenv("COLUMNS", "80")
    config = Config(model={"path": "x"}, trainer={"output_dir": str(tmp_path), "max_steps": 30})
    with RunDirectory(config) as directory:
        shown = Display(config.trainer, directory, ["math", "format"])
        for number in range(1, 12):
            shown.show(Step(number, {"step": number, **METRICS}))
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  truncated")[0] for line in lines] == [
        "step  1/30  reward 0.500",
        "step 10/30  reward 0.500",
    ]
    assert all(60 < len(line) <= 80 for line in lines)
    logged = (tmp_path / "train.log").read_text().splitlines()
    assert [line.partition(": ")[2] for line in logged] == [
        f"step {number:>2}/30  reward 0.500  truncated 12%  math 0.250  format 0.750  no signal 50%"
        "  loss 0.010  entropy 1.500  length 120.0  gap 1.0e-06  grad 0.200  s/step 4.250"
        for number in (1, 10)
    ]


def test_after_a_while_every_step_has_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    config = Config(model={"path": "x"}, trainer={"output_dir": str(tmp_path), "max_steps": 30})
    with RunDirectory(config) as directory:
        shown = Display(config.trainer, directory)
        for number, now in ((2, 29.0), (3, 31.0), (4, 60.0), (5, 61.0)):  # noqa: B007
            shown.show(Step(number, {"step": number, **METRICS}))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["3/30", "5/30"]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_live_line_fits_and_names_the_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    config = Config(model={"path": "x"}, trainer={"output_dir": str(tmp_path), "max_steps": 300})
    with RunDirectory(config) as directory:
        shown = Display(config.trainer, directory)
        for number, now in ((1, 4.0), (2, 8.0), (3, 12.0)):  # noqa: B007
            shown.show(Step(number, {"step": number, **METRICS}))
        with report_activity("rollout", "step 4"):
            now = 47.0
            line = str(shown._live_line())
    assert len(line) <= width
    whole = "3/300 " + "─" * 20 + "  rollout 35 s  0:19:48 left  4.000 s/step  reward 0.500"
    assert whole.startswith(line[:80])
    assert line.startswith("3/300 " + "─" * 20 + "  rollout 35 s")


def test_the_time_left_is_that_of_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not of the validation before the first one; a resumed run begins where it was."""
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    config = Config(model={"path": "x"}, trainer={"output_dir": str(tmp_path), "max_steps": 10})
    with RunDirectory(config) as directory:
        shown = Display(config.trainer, directory)
        for number, now in ((0, 100.0), (1, 102.0)):  # noqa: B007
            shown.show(Step(number, {"step": number, **METRICS}))
        assert "0:00:18 left  2.000 s/step" in str(shown._live_line())
        resumed = Display(config.trainer, directory)
        resumed.continue_after(5)
        assert str(resumed._live_line()) == "5/10 " + "━" * 10 + "─" * 10
    assert capsys.readouterr().out.endswith("continuing after step 5\n")


@pytest.mark.parametrize("std", [0.0, 0.3])
def test_display_says_what_the_first_steps_show_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], std: float
) -> None:
    config = Config(model={"path": "x"}, trainer={"output_dir": str(tmp_path), "max_steps": 30})
    with RunDirectory(config) as directory:
        shown = Display(config.trainer, directory, ["math"])
        for number in range(1, 8):
            metrics = {"step": number, "rewards/math/mean": 0.0, "rewards/math/std": std}
            shown.show(Step(number, metrics))
    output = capsys.readouterr().out
    assert output.count("problem: A reward function never varies, steps 1 to 4: 'math'") == (
        std == 0
    )
