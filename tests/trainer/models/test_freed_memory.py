"""What a run on a CPU keeps of freed memory does not grow from step to step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = """
import json, resource, sys
from pathlib import Path
import numpy as np, torch
from transformers import AutoConfig, AutoModelForImageTextToText
from mmr1.config import OptimizerConfig
from mmr1.runtime import set_up_torch
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.models.optimizer import Optimizer
from tests.trainer.tiny_groups import group

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024

set_up_torch(0, threads=1)
config = AutoConfig.from_pretrained(sys.argv[1])
config.text_config.vocab_size = 151_936
model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
optimizer, rng, counted = Optimizer(model, OptimizerConfig(), 100), np.random.default_rng(0), []
for step in range(14):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(2):
        lengths = [int(n) for n in rng.integers(4, 120, 4)]
        groups = [group([], int(rng.integers(10, 120)), lengths, int(rng.integers(1 << 20)))]
        completion_scores(model, groups)[0].sum().backward()
    optimizer.step()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    counted.append((resident(), faults))
print(json.dumps(counted))
"""


@pytest.fixture(scope="module")
def counted(tiny_model) -> list[tuple[int, int]]:
    """Resident bytes after each step of ragged lengths over a real vocabulary, and its faults."""
    if not Path("/proc/self/status").exists():
        pytest.skip("Linux counts the bytes")
    command = [sys.executable, "-c", STEPS, str(tiny_model)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


@pytest.mark.slow
def test_freed_memory_does_not_grow_from_step_to_step(counted):
    kept = [resident for resident, _ in counted]
    bare, need = kept[0], max(kept[1:4]) - kept[0]
    assert max(kept) - bare < 1.5 * need


@pytest.mark.slow
def test_steps_use_the_memory_that_the_last_one_freed(counted):
    """A page is 4 KiB: what a step allocates would be as many faults, if it were given back."""
    faults = [faults for _, faults in counted]
    assert sum(faults[-6:]) < 0.3 * 6 * faults[1]
