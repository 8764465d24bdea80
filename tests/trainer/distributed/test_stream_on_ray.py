"""Streaming with ranks and engines on Ray: new weights reach engines that sample on."""

from __future__ import annotations

import os
import signal

import pytest

from mmr1.trainer.train import training_steps
from tests.jsonl import read_jsonl
from tests.trainer.distributed.engine_processes import processes
from tests.trainer.stream_runs import assert_within, learned, run_config

pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("vllm", reason="vLLM is not installed")


@pytest.mark.slow
@pytest.mark.vllm
def test_engines_sample_on_with_the_weights_that_ranks_send(tiny_model, digits, tmp_path):
    """The rate is so small that all versions have the same weights: every log-prob is exact.

    One engine dies on the way, and another takes its place.
    """
    run = run_config(
        tiny_model, digits, tmp_path, "out", queue={"at_new_weights": "continue"}
    ).changed({"resources": {"ranks": 2, "engines": 2}, "optimizer.lr": 1e-30})
    for number, _ in enumerate(training_steps(run), 1):
        if number == 3:
            os.kill(processes()[0].pid, signal.SIGKILL)
    out = tmp_path / "out"
    assert "replaced, 1 of" in (out / "train.log").read_text()
    assert_within(out, bound=2, updates=2)
    lines = read_jsonl(out / "metrics.jsonl")
    assert max(line["rollout/logprob_diff_max"] for line in lines) <= 1e-4
    assert any("versions" in c for row in learned(out) for c in row["completions"])
    assert len({row["id"] for row in learned(out)}) == 16
