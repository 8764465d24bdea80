"""Real runs of two steps, and the keys that they do not read and take without a word."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mmr1 import start
from mmr1.config import Config
from mmr1.config.file import Loaded, load
from mmr1.section import Section
from tests.config.keys import Key, every_key
from tests.config.reads import Reads, recorded_reads
from tests.trainer.conversations import brief_model

OWN = """
import torch
from mmr1.algorithms import Advantage, Loss, ratios
from mmr1.algorithms.interface import per_completion

def reward(completion: str, answer, **sample) -> float:
    return len(completion) % 7 / 7

def steps(completion, sample):
    end = len(completion)
    return [(end // 2, end % 3 / 3), (end, end % 7 / 7)]

def advantage(scale=1.0):
    def of_group(rewards, valid):
        return torch.where(valid, scale * rewards, 0.0)

    return Advantage(per_completion(of_group))

def loss(scale=1.0):
    return Loss(lambda x: scale * ratios.policy_gradient(x.logprobs, x.advantages))

class Game:
    def __init__(self, start=0):
        self.turns = start

    def reset(self, sample):
        self.turns = 0

    def step(self, action):
        self.turns += 1
        return "go on", self.turns > 1, 0.5
"""

OF_SAMPLING = (
    "rollout.engine=hf",
    "rollout.n=3",
    "rollout.max_prompt_length=56",
    "rollout.max_response_length=8",
    "scoring.workers=1",
    "rewards={own: {type: '{folder}/own.py:reward', sandbox: null}}",
)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of two steps.

    Attributes:
        name: Of its folder.
        keys: ``key=value``; ``{folder}`` is where the files of :func:`write_files` are.
        samples: True if it samples completions and scores them.
        data: Records in that folder.
    """

    name: str
    command: str
    keys: tuple[str, ...]
    samples: bool = True
    data: str = "digits/rl.jsonl"

    def load(self, folder: Path, *overrides: str) -> Loaded:
        """The configuration, with overrides of the test's."""
        keys = [
            "model.path={folder}/model",
            "model.dtype=float32",
            f"data.train={{folder}}/{self.data}",
            "data.media_root={folder}/digits",
            "data.train_batch_size=4",
            "trainer.max_steps=2",
            "trainer.threads=1",
            f"trainer.output_dir={{folder}}/{self.name.replace(' ', '_').replace(',', '')}",
            *(OF_SAMPLING if self.samples else ()),
            *self.keys,
        ]
        given: dict[str, str] = {}
        for override in (*keys, *overrides):
            key, _, value = override.replace("{folder}", str(folder)).partition("=")
            given = {k: v for k, v in given.items() if not k.startswith(f"{key}.")}
            given[key] = value
        return load(None, [f"{key}={value}" for key, value in given.items()], self.command)


def write_files(folder: Path, tiny_model: Path, digits: Path) -> None:
    """Write what the runs name: a model, data of every form, and code of one's own."""
    (folder / "model").symlink_to(tiny_model)
    brief_model(tiny_model, folder / "brief")
    (folder / "digits").symlink_to(digits)
    (folder / "own.py").write_text(OWN)
    lines = (digits / "rl.jsonl").read_text().splitlines()[:16]
    (folder / "eval.jsonl").write_text("\n".join(lines[:4]) + "\n")
    rows = [json.loads(line) for line in lines]
    for row in rows:
        row["meta"] = {
            "chosen": f"<answer>{row['answer']}</answer>",
            "rejected": "I do not know",
            "completions": ["one", "two"],
            "labels": [1, 0.5],
        }
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = [{"question": f"What is {n} and {n}?", "answer": str(2 * n)} for n in range(8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))


def reads_of(config: Config, folder: Path) -> Reads:
    """Run, and what was read meanwhile."""
    with recorded_reads() as reads:
        if config.command == "eval":
            from mmr1.evaluation.benchmarks import run_evaluations
            from mmr1.trainer.preflight import check_evaluation

            check_evaluation(config)
            run_evaluations(config)
        else:
            config, _ = start.with_gpus(config, resume=False)
            start.check_run(config, resume=False)
            start.run(config)
    return reads


def open_keys(config: Config) -> Iterator[tuple[Section, str, str]]:
    """Section, field and path of each key of the run's open sections."""
    for name in config.sections:
        value = getattr(config, name)
        if isinstance(value, Section):
            yield from _below(value, f"{name}.")
        else:
            yield config, name, name


def _below(section: Section, prefix: str) -> Iterator[tuple[Section, str, str]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if name == "type":
            continue
        if isinstance(value, Section):
            yield from _below(value, f"{prefix}{name}.")
            continue
        yield section, name, f"{prefix}{name}"
        if isinstance(value, Mapping):
            for entry, inner in value.items():
                if isinstance(inner, Section):
                    yield from _below(inner, f"{prefix}{name}.{entry}.")


@cache
def by_class() -> Mapping[tuple[str, str], Key]:
    return {key.of_class: key for key in every_key(Config.model_fields)}


def idle(run: Run, folder: Path, reads: Reads) -> list[str]:
    """The keys that the run did not read, and that are taken with another value without a word."""
    found, before = [], run.load(folder)
    for section, field, path in open_keys(before.config):
        key = by_class().get((type(section).__name__, field))
        if key is None or key.of_class in reads:
            continue  # a section that is null
        value = key.other.partition("=")[2]
        try:
            warnings = run.load(folder, f"{path}={value}").warnings
        except ValueError as refusal:
            assert field in str(refusal), f"{path}: {refusal}"
        else:
            new = set(warnings) - set(before.warnings)
            if not new and not any(warning.startswith(f"{path}:") for warning in warnings):
                found.append(f"{path}={value}")
    return found
