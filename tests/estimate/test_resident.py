"""The estimate of a run on a CPU against the peak of its process."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.bench.estimate import measure


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux counts the bytes")
@pytest.mark.parametrize(("vocabulary", "dtype"), [(49152, "float32"), (151936, "bfloat16")])
def test_the_estimate_is_within_15_percent_of_the_peak(vocabulary, dtype, tmp_path):
    """Trainer and engine in one process, a model of 130M parameters with a real vocabulary."""
    result = measure(tmp_path, vocabulary, dtype)
    print(result)
    assert result["estimated / measured"] == pytest.approx(1, abs=0.15)
