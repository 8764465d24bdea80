"""The engine behind vLLM's own server: a run learns with what it samples."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from mmr1.trainer.train import run_training
from tests.engines.http_runs import config, metrics
from tests.paths import REPOSITORY
from tests.vllm_server import vllm_server

ENGINE = f"{REPOSITORY / 'scripts/engines/vllm_server.py'}:VllmServer"


@pytest.mark.slow
@pytest.mark.vllm
def test_it_trains_with_pictures_and_follows_the_weights(tiny_model, files, tmp_path, monkeypatch):
    """The parity check compares it at the start, and each step's log-probs with the policy's."""
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    options = (
        *("--enable-scale-out", "--logprobs-mode", "processed_logprobs"),
        "--no-enable-chunked-prefill",
    )
    (folder := tmp_path / "shared").mkdir()
    with vllm_server(tiny_model, Path(tmp_path / "server.log"), *options) as url:
        engine = {"type": ENGINE, "url": url, "folder": str(folder)}
        run_training(config(tiny_model, files, tmp_path / "run", rollout={"engine": engine}))
    rows = metrics(tmp_path / "run")
    assert len(rows) == 3
    assert all(row["grad_norm"] > 0.1 for row in rows)  # an update moves log-probs by far more
    assert all(row["rollout/logprob_diff_max"] < 1e-4 for row in rows)
    assert not list(folder.iterdir())
