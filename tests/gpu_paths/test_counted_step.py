"""``scripts/bench/counted_step.py``: an update of 3B, with and without fused layers."""

from __future__ import annotations

import pytest

from scripts.bench.counted_step import counted, handed_over, report


@pytest.mark.slow
def test_fused_layers_move_a_third_of_the_element_wise_bytes():
    plain, weights = counted("3b", 8, 1024, fused=False)
    fused, _ = counted("3b", 8, 1024, fused=True)
    before, after = report(plain), report(fused)
    assert after["element-wise"]["GB"] < 0.4 * before["element-wise"]["GB"]
    assert after["all"]["kernels"] < 0.6 * before["all"]["kernels"]
    for same in ("products", "attention", "vocabulary"):
        assert after[same] == pytest.approx(before[same], rel=0.5)
        assert after[same]["TFLOP"] == pytest.approx(before[same]["TFLOP"])
    # 2 FLOPs a parameter and token forward, 4 backward; vision tokens through the tower too.
    tokens = 8 * 1024 + 1124
    assert before["products"]["TFLOP"] > 6 * 2.77e9 * tokens / 1e12
    assert handed_over(weights)["ipc"] == 0
    assert weights == pytest.approx(7.5e9, rel=0.01)
