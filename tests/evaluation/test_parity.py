"""``mmr1 parity``: gaps of engine and trainer by kind of prompt, before and after an update."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmr1.cli import app
from mmr1.config.file import config_from
from mmr1.evaluation.parity import measure_parity
from mmr1.vision.families.tiny import new_model


def test_an_update_that_is_not_sent_is_seen_and_one_that_is_sent_is_not(tiny_model: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    values = {
        "model": {"path": str(tiny_model), "dtype": "float32"},
        "rollout": {"max_prompt_length": 1024, "max_response_length": 16},
        "rewards": {"format": 1.0},
        "optimizer": {"lr": 1e-4},
    }
    config = config_from(values)
    rows = measure_parity(config)
    assert [r.kind for r in rows] == ["text", "a picture", "two pictures", "a video", "turns"]
    for row in rows:
        assert row.agrees(config.parity_tolerance)
        assert row.stale > 10 * config.parity_tolerance
    assert rows[0].tokens < rows[1].tokens < rows[2].tokens < rows[3].tokens


def test_a_gap_above_the_tolerance_is_exit_code_1(tiny_model: Path) -> None:
    given = ["parity", str(tiny_model), "model.dtype=float32", "rollout.engine=hf"]
    result = CliRunner().invoke(app, [*given, "rollout.parity_tolerance=1e-12"])
    assert result.exit_code == 1
    assert "DIFFER" in result.output
    assert max(len(line) for line in result.output.splitlines() if "│" in line) <= 80


def test_a_text_model_takes_no_pictures(tmp_path: Path) -> None:
    new_model(tmp_path / "text", family="qwen2")
    given = ["parity", str(tmp_path / "text"), "model.dtype=float32", "rollout.engine=hf"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    assert "text model" in " ".join(result.output.split())
