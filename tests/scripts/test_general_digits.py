"""``scripts/bench/general_digits.py``: every stage runs for every model."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from mmr1.report.curves import read_metrics
from tests.paths import REPOSITORY
from tests.vision.families.general_models import FAMILIES, MODELS

NAMES = [n for n in ("gemma3", "llava", "smolvlm", "qwen3_5") if n in (*MODELS, *FAMILIES)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_all_stages_run(name, tmp_path):
    script, options = "scripts/bench/general_digits.py", ("--seeds", "3", "--smoke")
    done = subprocess.run(
        [sys.executable, script, "--models", name, *options, "--output", tmp_path],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / f"{name}-3"
    results = {
        stage: json.loads((folder / "eval" / stage / "result.json").read_text())
        for stage in ("sft", "control", "rl")
    }
    assert [result["prompts"] for result in results.values()] == [8, 8, 8]
    metrics = read_metrics(folder / "rl/metrics.jsonl")
    assert max(metrics["rollout/logprob_diff_max"]) < 1e-4  # engine and trainer are one model
