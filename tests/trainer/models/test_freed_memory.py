"""What a run on a CPU keeps of freed memory does not grow from step to step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = """
import json, sys
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
for step in range(6):
    for _ in range(2):
        lengths = [int(n) for n in rng.integers(4, 120, 4)]
        groups = [group([], int(rng.integers(10, 120)), lengths, int(rng.integers(1 << 20)))]
        completion_scores(model, groups)[0].sum().backward()
    optimizer.step()
    counted.append(resident())
print(json.dumps(counted))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux counts the bytes")
def test_ragged_lengths_and_a_real_vocabulary_leave_nothing_behind(tiny_model):
    command = [sys.executable, "-c", STEPS, str(tiny_model)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    first, *_, last = json.loads(output.splitlines()[-1])
    assert last - first < 32 << 20
