"""``pytest --pyargs mmr1_contrib.lab.conformance --engine package:Engine --model PATH``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mmr1_contrib.lab.conformance.bench import Bench, opened_bench, parity_config
from mmr1_contrib.lab.conformance.checks import CHECKS


@pytest.fixture(scope="module")
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """The engine that the options name."""
    model = request.config.getoption("--model")
    if model is None:
        raise pytest.UsageError("--model: name the model that the engine samples from")
    overrides = [f"rollout.engine={request.config.getoption('--engine')}", "model.dtype=float32"]
    with opened_bench(parity_config(model, overrides)) as opened:
        yield opened


@pytest.mark.parametrize("name", CHECKS)
def test_engine_conforms(bench: Bench, name: str) -> None:
    """One check of the table."""
    verdict = CHECKS[name](bench)
    if verdict.passed is None:
        pytest.skip(verdict.measured)
    assert verdict.passed, verdict.measured
