"""No key is idle: set to another value it is read by the run, or refused.

Real runs of two steps record which keys they read. A key that a run does not read must be refused
where that run sets it. Every key under every preset: ``-m slow``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from mmr1 import start
from mmr1.config import Config
from mmr1.config.file import Loaded, load
from mmr1.config.presets import PRESETS
from mmr1.section import Section
from tests.config.keys import Key, every_key
from tests.config.reads import Reads, recorded_reads
from tests.paths import REPOSITORY
from tests.trainer.conversations import brief_model

PLUGINS = REPOSITORY / "tests/environments/plugins.py"
OWN = """
import torch
from mmr1.trainer.algorithms import Advantage, Loss, losses
from mmr1.trainer.algorithms.algorithm import per_completion

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
    return Loss(lambda x: scale * losses.policy_gradient(x.logprobs, x.advantages))

def preference(margins, beta, scale=1.0):
    return -torch.nn.functional.logsigmoid(scale * beta * margins)

class Game:
    def __init__(self, start=0):
        self.turns = start

    def reset(self, sample):
        self.turns = 0

    def step(self, action):
        self.turns += 1
        return "go on", self.turns > 1, 0.5
"""

KL = ("algorithm.kl.coef=0.02", "algorithm.kl.target=0.01")
MOVING = ("algorithm.kl.reference.type=moving", "algorithm.kl.reference.sync_steps=1")
SEVERAL = ("algorithm.ppo_epochs=2", "algorithm.ppo_mini_batch_size=2")
EVERYTHING = (
    *KL,
    *SEVERAL,
    "algorithm.entropy.coef=0.01",
    "algorithm.entropy.target=2",
    "algorithm.perception.coef=0.02",
    "algorithm.ptx.data={folder}/digits/sft.jsonl",
    "algorithm.ptx.batch_size=4",
    "algorithm.rollout_correction.importance_sampling.level=token",
    "algorithm.rollout_correction.rejection_sampling.threshold=2",
    "algorithm.rollout_correction.off_policy_mask_threshold=0.5",
)
VALIDATED = "trainer.validation.data={folder}/eval.jsonl"
OF_TRAINER = (
    "trainer.checkpoints.save_steps=1",
    VALIDATED,
    "trainer.validation.steps=1",
    "data.train={folder}/eval.jsonl",  # so few that samples come again
    "trainer.tracking.report_to=[tensorboard]",
    "data.curriculum.function=own",
)
PROCESS = "algorithm.advantage.step_rewards={folder}/own.py:steps"
TEACHER = ("algorithm.advantage.teacher.path={folder}/model",)
NEEDED = {"process_grpo": (PROCESS,), "on_policy_distillation": TEACHER}
NO_KL = ("process_grpo", "on_policy_distillation")  # as a penalty, or at all

OF_SAMPLING = (
    "rollout.engine=hf",
    "rollout.n=3",
    "rollout.max_prompt_length=56",
    "rollout.max_response_length=8",
    "rewards.workers=1",
    "rewards.functions={own: {use: '{folder}/own.py:reward', sandbox: null}}",
)

RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{
        f"{name}, KL in the loss": (
            "train",
            (f"algorithm={name}", *NEEDED.get(name, ()), *EVERYTHING, *MOVING),
        )
        for name in PRESETS
        if name != "on_policy_distillation"
    },
    **{
        f"{name}, KL in the reward": (
            "train",
            (f"algorithm={name}", *SEVERAL, *KL, "algorithm.kl.type=reward"),
        )
        for name in PRESETS
        if name not in NO_KL
    },
    **{
        f"{name}, exact KL": (
            "train",
            (f"algorithm={name}", *NEEDED.get(name, ()), *SEVERAL, *KL, "algorithm.kl.type=full"),
        )
        for name in PRESETS
        if name != "on_policy_distillation"
    },
    "on_policy_distillation": (
        "train",
        ("algorithm=on_policy_distillation", *TEACHER, *(k for k in EVERYTHING if k not in KL)),
    ),
    "the trainer's sections": ("train", (*OF_TRAINER, "optimizer.scheduler=cosine")),
    "a linear rate": ("train", ("optimizer.scheduler=linear",)),
    "dynamic sampling": (
        "train",
        (
            "algorithm=dapo",
            "algorithm.filter_groups.range.metric=own",
            "algorithm.filter_groups.gen_batch_size=4",
            "algorithm.filter_groups.keep_surplus=true",
        ),
    ),
    "replay": ("train", ("algorithm.filter_groups=replay",)),
    **{
        f"advantage {kind}": ("train", (f"algorithm.advantage={kind}",))
        for kind in ("pass_at_k", "optimal_baseline", "gdpo")
    },
    "own advantage": (
        "train",
        ("algorithm.advantage={folder}/own.py:advantage",),
    ),
    "own loss": ("train", ("algorithm.loss={folder}/own.py:loss", *SEVERAL)),
    "loss ppo_kl": (
        "train",
        ("algorithm.loss=ppo_kl", "algorithm.loss.coef=1", "algorithm.loss.target=0.1", *SEVERAL),
    ),
    "loss sequence_ppo": ("train", ("algorithm.loss=sequence_ppo", *SEVERAL)),
    "loss reinforce": ("train", ("algorithm.loss=reinforce", *SEVERAL)),
    "a reference of its own": (
        "train",
        (*KL, "algorithm.kl.reference.type=model", "algorithm.kl.reference.path={folder}/model"),
    ),
    "the exact KL to a model": (
        "train",
        (
            *KL,
            "algorithm.kl.type=full",
            "algorithm.kl.reference.type=model",
            "algorithm.kl.reference.path={folder}/model",
        ),
    ),
    "the exact KL to a moving reference": ("train", (*KL, "algorithm.kl.type=full", *MOVING)),
    "adapters": ("train", ("model.lora.rank=2",)),
    "tools": (
        "train",
        (
            "model.path={folder}/brief",
            "environment.tools=[zoom]",
            f"environment.parser={PLUGINS}:always_zoom",
            "environment.instructions=''",
            "environment.workers=1",
        ),
    ),
    "an environment": (
        "train",
        (
            "model.path={folder}/brief",
            "environment.type=custom",
            "environment.use={folder}/own.py:Game",
            "environment.workers=1",
        ),
    ),
    "built-in rewards": (
        "train",
        (
            "rewards.functions={format: {gate: 0.5}, math: 1.0}",
            "eval.sampled.n=2",
            "eval.sampled.best_of=math",
            VALIDATED,
        ),
    ),
    "a sandbox": (
        "train",
        ("rewards.functions={own: {use: '{folder}/own.py:reward'}}", "rewards.timeout_s=60"),
    ),
    "columns": ("train", ("data.train={folder}/rows.jsonl", "data.format.prompt_key=question")),
    "sft": ("sft", ("data.train={folder}/digits/sft.jsonl",)),
    "sft of adapters": ("sft", ("data.train={folder}/digits/sft.jsonl", "model.lora={}")),
    "rm": ("rm", ("trainer.validation.data={folder}/pairs.jsonl",)),
    "rm of steps": ("rm", ("rm.type=process", "trainer.validation.data={folder}/pairs.jsonl")),
    **{
        f"dpo {kind}": ("dpo", (f"dpo.loss={kind}",))
        for kind in ("sigmoid", "sigmoid_norm", "ipo", "robust", "simpo", "orpo", "kto")
    },
    "dpo in rounds": (
        "dpo",
        ("dpo.rounds.count=2", "dpo.rounds.prompts=4", "dpo.rounds.preferred_by=reward"),
    ),
    "iterate": (
        "iterate",
        (
            "iterate.rounds=2",
            "iterate.rm_steps=2",
            "iterate.ranked_by=own",
            "rewards.functions={own: {use: '{folder}/own.py:reward', sandbox: null}, "
            "liked: {use: reward_model, options: {path: '{folder}/rm/checkpoints/step_000002'}}}",
        ),
    ),
    "eval": ("eval", ("eval.data={folder}/eval.jsonl", "eval.sampled.n=2")),
}

QUICK = (
    "grpo, KL in the loss",
    "the trainer's sections",
    "tools",
    "sft",
    "rm of steps",
    "dpo sigmoid",
    "eval",
)
"""Those of the default suite; one for each part of the code."""


@pytest.fixture(scope="module")
def folder(tiny_model: Path, digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the runs name: a model, data of every form, and code of one's own."""
    folder = tmp_path_factory.mktemp("idle")
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
    return folder


def loaded(folder: Path, name: str, *overrides: str) -> Loaded:
    """The configuration of a run, with overrides of the test's."""
    command, own = RUNS[name]
    samples = command in ("train", "iterate", "eval") or any("dpo.rounds" in key for key in own)
    data = "pairs.jsonl" if command in ("dpo", "rm") and not samples else "digits/rl.jsonl"
    keys = [
        "model.path={folder}/model",
        "model.dtype=float32",
        f"data.train={{folder}}/{data}",
        "data.media_root={folder}/digits",
        "data.train_batch_size=4",
        "trainer.max_steps=2",
        "trainer.threads=1",
        f"trainer.output_dir={{folder}}/{name.replace(' ', '_').replace(',', '')}",
        *(OF_SAMPLING if samples else ()),
        *own,
    ]
    given: dict[str, str] = {}
    for override in (*keys, *overrides):
        key, _, value = override.replace("{folder}", str(folder)).partition("=")
        given = {k: v for k, v in given.items() if not k.startswith(f"{key}.")}
        given[key] = value
    return load(None, [f"{key}={value}" for key, value in given.items()], command)


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
    return {key.of_class: key for key in every_key()}


def idle(folder: Path, name: str, reads: Reads) -> list[str]:
    """The keys that the run did not read, and that are taken with another value without a word."""
    found, run = [], loaded(folder, name)
    for section, field, path in open_keys(run.config):
        key = by_class().get((type(section).__name__, field))
        if key is None or key.of_class in reads:
            continue  # a section that is null
        value = key.other.partition("=")[2]
        try:
            warnings = loaded(folder, name, f"{path}={value}").warnings
        except ValueError as refusal:
            assert field in str(refusal), f"{path}: {refusal}"
        else:
            new = set(warnings) - set(run.warnings)
            if not new and not any(warning.startswith(f"{path}:") for warning in warnings):
                found.append(f"{path}={value}")
    return found


ELSEWHERE = {
    "eval": [
        "model.use_liger_kernel=true",
        "rollout.timeout_s=0.25",
        "rollout.max_restarts=2",
        "resources.collective_timeout_s=0.25",
    ]
}
"""What only training or Ray reads, which no check can tell ``mmr1 eval``: its file is a run's."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in RUNS]
)
def test_what_a_run_does_not_read_is_refused(name: str, folder: Path) -> None:
    if name == "iterate" and not (folder / "rm").exists():
        start.run(loaded(folder, "rm").config)
    reads = reads_of(loaded(folder, name).config, folder)
    assert idle(folder, name, reads) == ELSEWHERE.get(name, [])


def test_the_runs_have_every_preset() -> None:
    named = {name.partition(",")[0] for name in RUNS}
    assert set(PRESETS) <= named
