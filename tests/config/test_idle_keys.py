"""No key is idle: set to another value it is read by the run, or refused.

Real runs of two steps record which keys they read. A key that a run does not read must be refused
where that run sets it. Every key under every preset: ``-m slow``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mmr1.config.presets import PRESETS
from tests.config.idle_runs import Run, idle, reads_of, write_files
from tests.paths import REPOSITORY

PLUGINS = REPOSITORY / "tests/environments/plugins.py"
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
            "environment.type={folder}/own.py:Game",
            "environment.workers=1",
        ),
    ),
    "built-in rewards": (
        "train",
        (
            "rewards={format: {gate: 0.5}, math: 1.0}",
            "eval.sampled.n=2",
            "eval.sampled.best_of=math",
            VALIDATED,
        ),
    ),
    "a sandbox": (
        "train",
        ("rewards={own: {type: '{folder}/own.py:reward'}}", "scoring.timeout_s=60"),
    ),
    "columns": ("train", ("data.train={folder}/rows.jsonl", "data.format.prompt_key=question")),
    "sft": ("sft", ("data.train={folder}/digits/sft.jsonl",)),
    "sft of adapters": ("sft", ("data.train={folder}/digits/sft.jsonl", "model.lora={}")),
    "eval": ("eval", ("eval.data={folder}/eval.jsonl", "eval.sampled.n=2")),
}

QUICK = (
    "grpo, KL in the loss",
    "the trainer's sections",
    "tools",
    "sft",
    "eval",
)
"""Those of the default suite; one for each part of the code."""


@pytest.fixture(scope="module")
def folder(tiny_model: Path, digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("idle")
    write_files(folder, tiny_model, digits)
    return folder


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
    command, keys = RUNS[name]
    run = Run(name, command, keys, samples=command != "sft")
    reads = reads_of(run.load(folder).config, folder)
    assert idle(run, folder, reads) == ELSEWHERE.get(name, [])
