from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.paths import REPOSITORY

SCRIPT = REPOSITORY / "scripts" / "bench" / "rewards.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_rewards", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_thousand_steps_with_poison_keep_memory_flat(bench: ModuleType) -> None:
    memory, left = bench.steady(1000)
    settled = memory[len(memory) // 4 :]
    assert max(settled) - min(settled) < 50
    assert left == 0


@pytest.mark.slow
def test_64_items_of_which_8_hang(bench: ModuleType) -> None:
    _, good, hung = bench.hangs()
    assert (good, hung) == (56, 8)
