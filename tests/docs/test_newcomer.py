"""What a newcomer adds, each in one file: the files of ``docs/extend.md``, all used in one run.

The lines of code and the imports of mmr1 are counted, so that the ways stay short.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mmr1.config.file import load_config
from mmr1.trainer.train import run_training
from tests.engines import http_server
from tests.jsonl import read_jsonl
from tests.paths import REPOSITORY
from tests.trainer.conversations import brief_model

FILES = dict(
    re.findall(
        r"<!-- file: (\S+) -->\n```\w+\n(.*?)```",
        (REPOSITORY / "docs/extend.md").read_text(),
        re.S,
    )
)


@contextmanager
def server(model: Path) -> Iterator[str]:
    """The address of a server of the model, which ends when its standard input does."""
    command = [sys.executable, http_server.__file__, str(model)]
    with subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"


@pytest.fixture(scope="module")
def folder(tiny_model, digits, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("newcomer")
    for name, source in FILES.items():
        (folder / name).write_text(source)
    brief_model(tiny_model, folder / "model")
    shutil.copytree(digits / "images", folder / "images")
    rows = []
    for record in read_jsonl(digits / "rl.jsonl")[:12]:
        picture, text = record["messages"][0]["content"]
        gold = {"value": record["answer"]}
        rows.append({"q": text["text"], "pic": picture["path"], "gold": gold})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with server(folder / "model") as url, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        changes = ["model.dtype=float32", "optimizer.lr=1e-3", "optimizer.scheduler.warmup_steps=0"]
        run_training(load_config(Path("run.yaml"), [*changes, f"rollout.engine.url={url}"]))
    return folder


def test_one_run_uses_all_parts(folder: Path) -> None:
    steps = read_jsonl(folder / "run/metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2]
    with (folder / "run/metrics.csv").open() as file:
        logged = {(row[0], row[1]): float(row[2]) for row in csv.reader(file)}
    for step in steps:
        assert logged[str(step["step"]), "reward/mean"] == step["reward/mean"]
        assert step["capped"] == 0.0  # one update of each rollout: the ratio is 1
        assert step["rollout/logprob_diff_mean"] < 1e-5  # the server has the new weights
        assert 1 <= step["environment/turns"] <= 2
        assert step["rewards/vowels/mean"] > 0
    assert steps[0]["grad_norm"] > 0


def test_the_advantage_is_of_the_rewards_and_the_options_of_the_file(folder: Path) -> None:
    for group in groups(folder):
        completions = group["completions"]
        rewards = [c["reward"] for c in completions]
        advantages = [2.0 * (r - statistics.median_low(rewards)) for r in rewards]
        assert [c["advantage"] for c in completions] == pytest.approx(advantages, abs=1e-6)


def groups(folder: Path) -> list[dict]:
    return read_jsonl(folder / "run/rollouts/step_000001.jsonl")
