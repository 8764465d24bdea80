"""A long run holds no more at its end than at its beginning.

    SOAK_STEPS=3000 pytest -m slow tests/trainer/test_long_run.py -s

Tools of three kinds, vLLM, verifiers, validation and checkpoints, in one process tree.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil
import pytest

from tests.jsonl import read_jsonl

STEPS = int(os.environ.get("SOAK_STEPS", "300"))
EVERY = max(1, STEPS // 60)
"""Steps between two measurements."""
PLUGINS = '''
def reward(completion: str, answer) -> float:
    return len(completion) % 7 / 7


def parse(text: str) -> list:
    """A call in every turn: an untrained model writes none."""
    calls = (
        {"name": "zoom", "arguments": {"box": [0, 0, 20 + len(text) % 4, 28]}},
        {"name": "python", "arguments": {"code": f"print({len(text)} ** 2)"}},
        {"name": "length", "arguments": {"text": text}},
    )
    return [calls[len(text) % 3]]


def length(text: str) -> str:
    """Count letters.

    Args:
        text: The letters.
    """
    return f"{len(text)}"
'''


def write_run(folder: Path, model: Path, digits: Path) -> Path:
    """The configuration of a run on eight pictures, which its caches soon hold."""
    plugins = folder / "plugins.py"
    plugins.write_text(PLUGINS)
    brief = shutil.copytree(model, folder / "model")
    options = json.loads((brief / "generation_config.json").read_text())
    ends = {**options, "eos_token_id": list(range(100, 200))}  # after about six tokens
    (brief / "generation_config.json").write_text(json.dumps(ends))
    rows = (digits / "rl.jsonl").read_text().splitlines(keepends=True)
    (folder / "rows.jsonl").write_text("".join(rows[:8]))
    config = {
        "model": {"path": str(brief), "dtype": "float32"},
        "data": {"train": str(folder / "rows.jsonl"), "media_root": str(digits)},
        "environment": {
            "tools": ["zoom", "python", f"{plugins}:length"],
            "parser": f"{plugins}:parse",
            "instructions": "",
            "max_turns": 3,
            "max_tokens_per_turn": 20,
            "workers": 1,
        },
        "rollout": {
            "engine": "vllm",
            "n": 4,
            "max_prompt_length": 96,
            "max_response_length": 160,
        },
        "rewards": {"own": {"type": f"{plugins}:reward"}, "math": 0.5},
        "scoring": {"workers": 1},
        "trainer": {
            "max_steps": STEPS,
            "output_dir": str(folder / "run"),
            "threads": 1,
            "log_completions_steps": max(1, STEPS // 60),
            "validation": {"data": str(folder / "rows.jsonl"), "steps": max(1, STEPS // 30)},
            "checkpoints": {"save_steps": max(1, STEPS // 30)},
        },
        "eval": {"limit": 8, "accuracy_function": "own"},
    }
    config["data"]["train_batch_size"] = 1
    (folder / "run.yaml").write_text(json.dumps(config))
    return folder / "run.yaml"


def held(root: psutil.Process) -> dict[str, int]:
    """What the processes of a run hold; a tool's process may end meanwhile."""
    processes = [root, *root.children(recursive=True)]
    found = {"MiB of the trainer": root.memory_full_info().uss >> 20}
    each = [(p.memory_full_info().uss >> 20, p.num_fds(), p.num_threads()) for p in processes]
    found["MiB of the others"] = sum(memory for memory, _, _ in each[1:])
    found["descriptors"] = sum(descriptors for _, descriptors, _ in each)
    found["threads"] = sum(threads for _, _, threads in each)
    return found | {"processes": len(processes), "shared": len(list(Path("/dev/shm").iterdir()))}


def measured(run: subprocess.Popen[bytes], folder: Path) -> Iterator[dict[str, int]]:
    """What the run holds, from time to time."""
    root, due = psutil.Process(run.pid), EVERY
    while run.poll() is None:
        file = folder / "metrics.jsonl"
        step = file.read_bytes().count(b"\n") if file.exists() else 0
        if step >= due:
            with suppress(psutil.Error):
                yield {"step": step, **held(root)}
                due = step + EVERY
        time.sleep(0.2)


@pytest.mark.slow
def test_a_long_run_holds_no_more_at_its_end(tiny_model, digits, tmp_path):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    config = write_run(tmp_path, tiny_model, digits)
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-m", "mmr1", "train", str(config)]
        run = subprocess.Popen(command, stdout=log, stderr=log)
    rows = []
    for row in measured(run, tmp_path / "run"):
        print(json.dumps(row), flush=True)
        rows.append(row)
    assert run.returncode == 0, (tmp_path / "log").read_text()
    assert len(read_jsonl(tmp_path / "run/metrics.jsonl")) == STEPS
    third = len(rows) // 3
    early, late = rows[third : 2 * third], rows[2 * third :]  # the first third fills the caches
    for name in early[0].keys() - {"step"}:
        before, after = (median(row[name] for row in part) for part in (early, late))
        assert after <= before * 1.05 + 2, (name, before, after)
