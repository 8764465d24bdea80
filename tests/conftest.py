"""Fixtures that several test packages share: a tiny model and a small real dataset."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors: threads only get in each other's way
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import pytest
import torch
from hypothesis import settings

from mmr1.types import Sample

# The examples are the same in every run, so that a pull request fails by what it changes.
# HYPOTHESIS_PROFILE=fresh draws others; what they find becomes an @example.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("fresh", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


REWARDS = [[1.5, 0.0, 0.5, 0.5], [1.0, 1.0, 1.0, 1.0], [0.0, 1.5, 0.0, 0.5]]
"""Of the completions of ``parts``."""


@pytest.fixture(scope="session", autouse=True)
def ctrl_c() -> None:
    """Programs that the tests start hear SIGINT, also where a shell runs the tests with ``&``."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Verdicts on models are those of this session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def zygotes() -> Iterator[None]:
    """Verifiers warm up once: a second of CPU time for each pool otherwise."""
    from mmr1.rewards.sandbox.processes import kept_zygotes

    with kept_zygotes():
        yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2.5-VL directory of 0.7M random parameters."""
    from mmr1.vision.families.tiny import new_model

    path = tmp_path_factory.mktemp("models") / "tiny"
    new_model(path)
    return path


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits dataset as the quickstart makes it."""
    from datasets_prep.generators import make

    path = tmp_path_factory.mktemp("data") / "digits"
    make("digits", path, 0)
    return path


@pytest.fixture(scope="session")
def digit_samples(digits: Path) -> list[Sample]:
    from mmr1.data.record import read_records

    return read_records(digits / "rl.jsonl")


@pytest.fixture(scope="session")
def parts(tiny_model: Path, digit_samples: list[Sample]) -> tuple[Any, ...]:
    """``(family, model, media, scored)``: a tiny model, and groups of random completions for it.

    Tests copy the model before they change it.
    """
    import numpy as np
    from transformers import AutoModelForImageTextToText

    from mmr1.types import Completion, Reward, RolloutGroup, ScoredGroup
    from mmr1.vision.families.loading import load_family
    from mmr1.vision.prepare import MediaCache

    family = load_family(str(tiny_model))
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.float32)
    media = MediaCache(family.prepare_media)
    rng = np.random.default_rng(0)

    def completion() -> Completion:
        length = int(rng.integers(2, 12))
        tokens = rng.integers(100, 600, length)
        return Completion(tokens, np.full(length, -6, np.float32), "", False, 0)

    scored = []
    for sample, rewards in zip(digit_samples, REWARDS, strict=False):
        group = RolloutGroup(family.render_prompt(sample), tuple(completion() for _ in rewards))
        scored.append(ScoredGroup(group, tuple(Reward(r) for r in rewards)))
    return family, model, media, scored


@pytest.fixture(scope="session")
def mixed(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of four kinds in turn: text, one image, two images, a video of two digits."""
    from datasets_prep.generators.digits import load_scans
    from datasets_prep.generators.video import two_scans, write_mp4

    folder = tmp_path_factory.mktemp("data") / "mixed"
    folder.mkdir()
    images = [Path(shutil.copy(p, folder)).name for p in sorted(digits.rglob("*.png"))[:8]]
    scans, _ = load_scans()
    rows = []
    for number in range(4):
        write_mp4(folder / f"{number}.mp4", *two_scans(scans[number], scans[number + 9]))
        first, second = images[2 * number : 2 * number + 2]
        video = {"type": "video", "path": f"{number}.mp4", "options": {"min_pixels": 3136}}
        kinds: list[dict] = [
            {"text": "How many days has a week?"},
            {"text": "<image>Which digit is this?", "images": [first]},
            {"text": "<image>Is it less than this?<image>", "images": [first, second]},
            {"text": [video, {"type": "text", "text": "Which digit comes first?"}]},
        ]
        for kind in kinds:
            message = {"role": "user", "content": kind.pop("text")}
            name = f"{number}-{len(rows)}"
            rows.append({"version": 1, "id": name, "messages": [message], "answer": "7", **kind})
    path = folder / "mixed.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def mmr1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process: ``(exit code, stdout, stderr)``."""
    from mmr1 import cli

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mmr1", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            cli.main()
        captured = capsys.readouterr()
        return int(exit_info.value.code or 0), captured.out, captured.err

    return run


MISSING = re.compile(r"not installed|could not import|pip install|no Chromium|no ffmpeg")
_skipped: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note_skip(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note_skip(report)


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        _skipped[report.nodeid] = str(report.longrepr[2])


def unlisted(skipped: Mapping[str, str]) -> list[str]:
    """The tests that were skipped for want of a package and that ``skips.txt`` does not list."""
    lines = (Path(__file__).parent / "skips.txt").read_text().splitlines()
    listed = [line for line in lines if line and not line.startswith("#")]
    return [
        f"{test}: {reason}"
        for test, reason in skipped.items()
        if MISSING.search(reason) and not any(re.search(pattern, reason) for pattern in listed)
    ]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI nothing is skipped because a package is missing, but for what ``skips.txt`` lists."""
    if os.environ.get("CI") and not hasattr(session.config, "workerinput"):
        for line in (found := unlisted(_skipped)):
            print(f"\nskipped for want of a package, and not in tests/skips.txt: {line}")
        if found and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
