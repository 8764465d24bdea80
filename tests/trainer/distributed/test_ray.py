"""Ranks and engines on Ray against one process: the same numbers, and typed ends of every death."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file

from mmr1.config import AlgorithmConfig, Config
from mmr1.config.file import dump_yaml
from mmr1.data.record import read_records
from mmr1.files import sha256_of
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.distributed.all_ranks import AllRanks
from mmr1.trainer.distributed.cluster import on_ray
from mmr1.trainer.distributed.errors import WorkerLostError
from mmr1.trainer.distributed.ray_engines import RayEngines
from mmr1.trainer.distributed.ray_policy import select_groups, split_update
from mmr1.trainer.models.optimizer import NonFiniteError
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.runs import checkpoint
from mmr1.trainer.runs.checkpoint import verify_checkpoint
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.trainer.train import run_training
from mmr1.types import Reward, ScoredGroup
from mmr1.vision.families.loading import load_family
from tests.algorithms.scored_groups import experience_of, scored
from tests.asking import asks, completed
from tests.jsonl import read_jsonl
from tests.trainer.conversations import brief_model, write_scans
from tests.trainer.distributed.context_scores import log_probs
from tests.trainer.models.reference_server import serving
from tests.trainer.resumption import LENGTH_REWARD
from tests.trainer.tool_runs import config as tool_run
from tests.vision.families.general_models import new_model
from tests.vision.families.tiny_family import TEXT

pytest.importorskip("ray", reason="Ray is not installed")

MakeConfig = Callable[[Path], Config]  # takes the folder of the run


@pytest.fixture(scope="module")
def reward(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("reward")
    (folder / "length.py").write_text(LENGTH_REWARD)
    (folder / "accident").write_text("")
    return folder / "length.py"


def config(
    tiny_model: Path, mixed: Path, reward: Path, out: Path, steps: int = 3, **sections: Any
) -> Config:
    tree: dict[str, Any] = {
        "model": {"path": str(tiny_model), "dtype": "float32"},
        "data": {"train": str(mixed), "train_batch_size": 4},
        "rollout": {
            "engine": "hf",
            "n": 3,
            "max_prompt_length": 88,
            "max_response_length": 8,
        },
        "rewards": {"length": {"type": f"{reward}:reward", "sandbox": None}},
        "algorithm": {
            "kl": {"coef": 0.02, "reference": {"type": "moving", "sync_steps": 2}},
            "entropy": {"coef": 0.01},
        },
        "optimizer": {"lr": 1e-3, "scheduler": {"warmup_steps": 2}},
        "trainer": {
            "max_steps": steps,
            "output_dir": str(out),
            "log_completions_steps": 1,
            "threads": 1,
            "logging_steps": 100,
            "max_tokens_per_gpu": 60,  # several micro-batches, not as many on every rank
        },
    }
    for name, keys in sections.items():
        tree[name] = {**tree.get(name, {}), **keys} if isinstance(keys, dict) else keys
    return Config.model_validate(tree)


def metrics(run: Path) -> list[dict[str, float]]:
    rows = read_jsonl(run / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def weights(run: Path) -> dict[str, torch.Tensor]:
    last = max((run / "checkpoints").glob("step_??????"))
    return load_file(last / "model.safetensors")


def assert_close(first: Path, second: Path, tolerance: float = 1e-5) -> None:
    for left, right in zip(metrics(first), metrics(second), strict=True):
        assert left == pytest.approx(right, abs=tolerance, rel=tolerance)
    ours, theirs = weights(first), weights(second)
    apart = torch.cat([(ours[name] - theirs[name]).abs().flatten() for name in ours])
    # AdamW makes steps of full length of any gradient, and of some that is no more than rounding: a
    # bias of the keys moves all scores nearly alike, and a rare token is hardly seen.
    assert (apart > 1e-5).float().mean() < 1e-4
    assert apart.max() < 1e-3


def tokens(run: Path) -> list[list[str]]:
    return [
        [c["text"] for c in json.loads(line)["completions"]]
        for path in sorted((run / "rollouts").iterdir())
        for line in path.read_text().splitlines()
    ]


def assert_same_learning(folder: Path, first: MakeConfig, second: MakeConfig) -> None:
    """Two runs sample the same tokens and learn the same.

    They round differently. Where a random number lies within rounding of the boundary between two
    tokens, each run samples another token and goes its own way, and the next seed decides. A fault
    shows in every seed.
    """
    for seed in range(3):
        runs = [folder / f"{name}_{seed}" for name in ("first", "second")]
        for run, make in zip(runs, (first, second), strict=True):
            run_training(make(run).changed(seed=seed))
        if tokens(runs[0]) == tokens(runs[1]):
            return assert_close(*runs)
    assert tokens(runs[0]) == tokens(runs[1])


@pytest.fixture(autouse=True)
def marked(monkeypatch) -> None:
    """Every process that a test starts inherits a mark, so that other clusters are not counted."""
    monkeypatch.setenv("MMR1_TEST_MARK", str(os.getpid()))


def left_over() -> list[psutil.Process]:
    """Ray's processes of this test run that are still there."""
    processes = []
    for process in psutil.process_iter(["name", "environ"]):
        mark = (process.info["environ"] or {}).get("MMR1_TEST_MARK")
        ours = process.info["name"].startswith(("ray::", "raylet", "gcs_server"))
        if ours and mark == str(os.getpid()):
            processes.append(process)
    return processes


def test_two_ranks_and_two_engines_learn_what_one_process_learns(
    tiny_model, mixed, reward, tmp_path
):
    # A step has one text, one image, one two-image and one video prompt: some rank always lacks
    # a kind, and they have different numbers of micro-batches.
    # Two mini-batches: the ranks take each step together, on their shares of its two prompts.
    # The tokens of each are compared with those on the other rank. Completions of a prompt begin
    # with equal entropies: a quantile that lies among them would be decided by rounding.
    algorithm = {"ppo_mini_batch_size": 2, "loss": {"top_entropy_quantile": 0.4}}
    trainer = {"profile_steps": [2]}
    run = partial(config, tiny_model, mixed, reward, algorithm=algorithm, trainer=trainer)
    assert_same_learning(tmp_path, run, partial(run, resources={"ranks": 2, "engines": 2}))
    assert not left_over()
    ours, theirs = (
        load_file(tmp_path / f"{name}_0/steps/step_000001.safetensors")
        for name in ("first", "second")
    )
    assert torch.equal(ours["media/patch_mean"], theirs["media/patch_mean"])
    assert {name: value.shape for name, value in ours.items()} == {
        name: value.shape for name, value in theirs.items()
    }
    torch.testing.assert_close(
        theirs["param/grad_norm"], ours["param/grad_norm"], atol=1e-4, rtol=1e-3
    )
    work = {"mmr1/forward", "mmr1/backward", "mmr1/optimizer"}
    phases = {f"mmr1/{phase}" for phase in ("rollout", "reward", "experience", "update", "sync")}
    assert traces(tmp_path / "first_0") == {"step_000002": phases | work}
    assert traces(tmp_path / "second_0") == {
        "step_000002": phases,
        "step_000002_rank_00000": work,
        "step_000002_rank_00001": work,
    }


def traces(run: Path) -> dict[str, set[str]]:
    """The spans of each trace that a run wrote."""
    return {
        path.name.removesuffix(".json.gz"): {
            event["name"]
            for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
            if event.get("name", "").startswith("mmr1/")
        }
        for path in (run / "profile").iterdir()
    }


@pytest.mark.slow
def test_conversations_are_sampled_and_learned_from_as_in_one_process(tiny_model, tmp_path):
    brief, scans = brief_model(tiny_model, tmp_path / "brief"), write_scans(tmp_path)

    def run(out: Path, **sections: dict) -> Config:
        return tool_run(brief, scans, out).changed(sections)

    assert_same_learning(tmp_path, run, partial(run, resources={"ranks": 2, "engines": 2}))
    assert metrics(tmp_path / "second_0")[0]["environment/images_mean"] > 0
    assert not left_over()


@pytest.mark.slow
@pytest.mark.parametrize(
    "sections",
    [
        {"resources": {"ranks": 4}},
        {"resources": {"ranks": 4, "fsdp_size": 2}},
        {
            "resources": {"ranks": 4, "context_parallel_size": 2},
            "model": {"freeze_vision_tower": True},
        },
        {"resources": {"ranks": 3, "engines": 2}, "model": {"freeze_vision_tower": True}},
        {"resources": {"ranks": 2}, "model": {"lora": {"rank": 4}}},
        pytest.param(
            {"resources": {"ranks": 2}, "model": {"lora": {"rank": 4, "load_in_4bit": True}}},
            marks=pytest.mark.skipif(
                importlib.util.find_spec("bitsandbytes") is None,
                reason="bitsandbytes is not installed",
            ),
        ),
        {"resources": {"ranks": 2}, "algorithm": {"ppo_epochs": 2, "ppo_mini_batch_size": 2}},
        {"resources": {"ranks": 2}, "model": {"gradient_checkpointing": True}},
        {
            "resources": {"ranks": 2},
            "algorithm": {"name": "kl_cov", "loss": {"ratio": 0.1}, "ppo_mini_batch_size": 2},
        },
    ],
    ids=[
        *("four ranks", "hybrid", "shared sequences", "frozen tower", "adapters", "4 bits"),
        *("two updates", "checkpointed", "chosen tokens"),
    ],
)
def test_twenty_steps_on_ranks(sections, tiny_model, mixed, reward, tmp_path):
    run = partial(config, tiny_model, mixed, reward, steps=20)
    on_one_rank = {name: keys for name, keys in sections.items() if name != "resources"}
    assert_same_learning(tmp_path, partial(run, **on_one_rank), partial(run, **sections))


@pytest.mark.slow
def test_sequences_that_are_shared_in_copies_of_the_model_with_a_served_reference(
    tiny_model, digits, reward, tmp_path
):
    family = load_family(str(tiny_model))
    placeholder = next(i for i, kind in family.placeholder_kinds.items() if kind == "image")
    with serving(partial(log_probs, placeholder=placeholder)) as url:
        algorithm = {"kl": {"coef": 0.02, "reference": {"type": "server", "url": url}}}
        run = partial(config, tiny_model, digits / "rl.jsonl", reward, algorithm=algorithm)
        many = {"ranks": 4, "context_parallel_size": 2, "fsdp_size": 2}
        assert_same_learning(tmp_path, run, partial(run, resources=many))


@pytest.mark.slow
def test_ppo_on_ranks_with_a_critic_that_is_saved_in_the_background(
    tiny_model, mixed, reward, tmp_path, monkeypatch
):
    critic = {"name": "ppo", "advantage": {"critic": {"lr": 1e-3}}}
    saved = {"checkpoints": {"async_save": True, "save_steps": 1}}
    run = partial(config, tiny_model, mixed, reward, steps=2, algorithm=critic, trainer=saved)
    run_training(run(tmp_path / "one"))
    read = set()

    def spied(path: Path) -> bytes:
        read.add(str(Path(*path.parts[path.parts.index("checkpoints") + 2 :])))
        return sha256_of(path)

    monkeypatch.setattr(checkpoint, "sha256_of", spied)
    run_training(run(tmp_path / "two", resources={"ranks": 2}))
    # The ranks take the digests of their files, this process those of what it has written itself.
    reference = "training/reference/shard-00001-model-00001-of-00001.safetensors"
    assert read == {"training/state.json", "manifest.json", reference}
    verify_checkpoint(tmp_path / "two/checkpoints/step_000002")
    assert tokens(tmp_path / "one") == tokens(tmp_path / "two")
    # A new critic's head begins at zero: where its gradient is small, AdamW's first step, which
    # does not depend on the size, follows the rounding.
    assert_close(tmp_path / "one", tmp_path / "two", tolerance=1e-3)
    assert "critic/loss" in metrics(tmp_path / "two")[0]
    assert (tmp_path / "two/checkpoints/step_000002/training/critic").is_dir()


def records_for(name: str, mixed: Path, folder: Path) -> Path:
    """Of a text model text. vLLM reads several images for LLaVA-OneVision otherwise than
    transformers does.
    """
    rows = map(json.loads, mixed.read_text().splitlines())
    most = 0 if name in TEXT else 1 if name == "llava_onevision" else 2
    kept = [row for row in rows if len(row.get("images", ())) <= most]
    if name in TEXT:
        kept = [row for row in kept if isinstance(row["messages"][0]["content"], str)]
    path = folder / "records.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "qwen2_vl", "qwen3_vl", "qwen3_5", "llava_onevision"])
def test_other_families_learn_on_ranks_what_they_learn_in_one_process(
    name, mixed, reward, tmp_path
):
    new_model(name, tmp_path / name)
    data = records_for(name, mixed, tmp_path)
    sections = {"data": {"media_root": str(mixed.parent)}, "rollout": {"max_prompt_length": 248}}
    run = partial(config, tmp_path / name, data, reward, **sections)
    assert_same_learning(tmp_path, run, partial(run, resources={"ranks": 2, "engines": 2}))


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize("name", ["qwen3_vl_moe", "llava_onevision"])
def test_other_families_send_their_weights_to_vllm(name, mixed, reward, tmp_path):
    """Experts in the layout of the hub, and weights that have other names there.

    Steps so large that the weights of the step before would show.
    """
    pytest.importorskip("vllm", reason="vLLM is not installed")
    new_model(name, tmp_path / name)
    data = records_for(name, mixed, tmp_path)
    sections = {
        "data": {"media_root": str(mixed.parent)},
        "optimizer": {"lr": 1e-2, "scheduler": {"warmup_steps": 0}},
    }
    run_training(
        config(
            tmp_path / name,
            data,
            reward,
            tmp_path / "run",
            **sections,
            rollout={"engine": "vllm", "max_prompt_length": 248},
            resources={"ranks": 2},
        )
    )
    gaps = [row["rollout/logprob_diff_mean"] for row in metrics(tmp_path / "run")]
    assert len(gaps) == 3
    assert max(gaps) < 1e-5


@pytest.mark.slow
@pytest.mark.vllm
def test_two_vllm_engines_sample_what_one_does(tiny_model, mixed, reward, tmp_path):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    for engines in (1, 2):
        resources = {"ranks": 2, "engines": engines}
        run_training(
            config(
                tiny_model,
                mixed,
                reward,
                tmp_path / str(engines),
                rollout={"engine": "vllm"},
                resources=resources,
            )
        )
    assert tokens(tmp_path / "1") == tokens(tmp_path / "2")


@pytest.mark.slow
def test_rollouts_ahead_do_not_depend_on_the_number_of_ranks(tiny_model, mixed, reward, tmp_path):
    """The weights of a step are kept while the ranks learn the next one."""
    run = partial(config, tiny_model, mixed, reward, rollout={"max_off_policy_steps": 1})
    one, two = (partial(run, resources={"ranks": n, "engines": 2}) for n in (1, 2))
    assert_same_learning(tmp_path, one, two)
    staleness = [row["rollout/staleness"] for row in metrics(tmp_path / "second_0")]
    assert staleness == [0.0, 1.0, 1.0]


@pytest.mark.slow
@pytest.mark.vllm
def test_engines_that_share_the_ranks_gpus_change_no_number(
    tiny_model, mixed, reward, tmp_path, monkeypatch
):
    """On a CPU vLLM cannot sleep; it does all else that it does then."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    calls = []

    def spied(method):
        def call(self, *args):
            words = [getattr(arg, "__name__", str(arg)) for arg in args]
            calls.append(" ".join([method.__name__, *words]))
            return method(self, *args)

        return call

    of_ranks, of_engines = ("make_room", "take_back"), ("call", "send")
    names = [*((AllRanks, name) for name in of_ranks), *((RayEngines, name) for name in of_engines)]
    for owner, name in names:
        monkeypatch.setattr(owner, name, spied(getattr(owner, name)))
    run = partial(
        config,
        tiny_model,
        mixed,
        reward,
        model={"path": str(tiny_model), "freeze_vision_tower": True},
    )
    split = {"rollout": {"engine": "vllm"}, "resources": {"ranks": 2, "engines": 2}}
    run_training(run(tmp_path / "split", **split))
    assert calls == ["send"] * 3
    calls.clear()
    turns = [
        *("make_room False", "send", "make_room True", "call rest", "take_back"),
    ]
    for name, engine, more in (
        ("offloaded", {"offload_trainer": True}, {}),
        ("sharing sequences", {}, {"context_parallel_size": 2}),
    ):
        shared = {"engine": {"type": "vllm", "colocate": True, **engine}}
        run_training(run(tmp_path / name, rollout=shared, resources={"ranks": 2, **more}))
        # The parity check twice, then the steps.
        assert calls == turns * 5
        calls.clear()
        assert tokens(tmp_path / "split") == tokens(tmp_path / name)
        assert_close(tmp_path / "split", tmp_path / name)


@pytest.fixture
def two_pretended_gpus(monkeypatch) -> Iterator[None]:
    """A cluster whose GPUs Ray only counts, and a core for each worker of an engine."""
    import ray

    cores = sorted(os.sched_getaffinity(0))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{cores[0]}|{cores[-1]}")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # Ray reads it once
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    ray.init(address="local", num_cpus=4, num_gpus=2, include_dashboard=False, **quiet)
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.vllm
def test_an_engine_of_two_gpus_shares_those_of_two_ranks(
    tiny_model, mixed, reward, tmp_path, two_pretended_gpus
):
    """Each of its workers gets the weights, twice before the steps and once before each."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    run = partial(config, tiny_model, mixed, reward)
    run_training(run(tmp_path / "one", rollout={"engine": "vllm"}))
    shared = {"type": "vllm", "colocate": True, "tensor_parallel_size": 2, "offload_trainer": True}
    together = run(tmp_path / "wide", rollout={"engine": shared}, resources={"ranks": 2})
    assert (together.engines, together.rollout.gpus_per_engine) == (1, 2)
    run_training(together)
    assert tokens(tmp_path / "one") == tokens(tmp_path / "wide")
    assert_close(tmp_path / "one", tmp_path / "wide")


@pytest.mark.slow
def test_a_checkpoint_goes_on_with_another_number_of_ranks(tiny_model, mixed, reward, tmp_path):
    """And another context; the reference is a moving average."""
    # The rate does not depend on the last step.
    steady = {"scheduler": {"type": "constant", "warmup_steps": 0}}
    moving = {"type": "moving", "sync_steps": 1, "mixup_alpha": 0.6}
    moved = {"kl": {"coef": 0.02, "reference": moving}}
    for steps, ranks, context in ((1, 4, 2), (2, 2, 1), (3, 2, 2), (4, 1, 1)):
        run_config = config(
            tiny_model,
            mixed,
            reward,
            tmp_path / "resumed",
            steps=steps,
            optimizer=steady,
            algorithm=moved,
            resources={"ranks": ranks, "context_parallel_size": context},
        )
        run_training(run_config, resume=True)
    run_training(
        config(
            tiny_model,
            mixed,
            reward,
            tmp_path / "whole",
            steps=4,
            optimizer=steady,
            algorithm=moved,
        )
    )
    assert tokens(tmp_path / "resumed") == tokens(tmp_path / "whole")
    assert_close(tmp_path / "resumed", tmp_path / "whole")


def test_selected_groups_of_an_experience_keep_their_rows():
    groups = [scored([2, 3], [1.0, 0.0]), scored([1, 2], [0.0, 0.5]), scored([3, 1], [1.0, 0.25])]
    batch = experience_of(groups, AlgorithmConfig())
    selected = select_groups(batch, [2, 0])
    assert selected.groups == (groups[2], groups[0])
    rows = [4, 5, 0, 1]
    assert torch.equal(selected.tokens.advantages, batch.tokens.advantages[rows])
    assert torch.equal(selected.tokens.loss_weights, batch.tokens.loss_weights[rows])
    assert selected.tokens.old_logprobs is None
    assert np.isclose(float(batch.tokens.loss_weights.sum()), 1.0)


def test_the_ranks_have_about_the_same_work_left_when_groups_without_signal_are_dropped():
    """16 groups of 8 for each of 8 ranks; half of them have equal rewards and are not learnt."""
    rng = np.random.default_rng(0)
    groups = [
        scored(rng.integers(100, 1000, 8).tolist(), rng.integers(0, 2, 8) * float(i % 2))
        for i in range(128)
    ]
    batch = experience_of(groups, AlgorithmConfig())
    tokens = batch.tokens.mask.sum(1) * batch.mini_batches[0].learning
    shares = split_update(batch, lambda prompt: 500.0, 8)
    work = [sum(500 + int(tokens[8 * g : 8 * g + 8].sum()) for g in share) for share in shares]
    assert max(work) / np.mean(work) < 1.05
    assert sorted(g for share in shares for g in share) == list(range(1, 128, 2))


def command_for(run: Config, folder: Path) -> list[str]:
    path = folder / "run.yaml"
    path.write_text(dump_yaml(run))
    return [sys.executable, "-m", "mmr1.cli", "train", str(path), "--resume"]


def started(command: list[str], awaited: Path) -> subprocess.Popen[str]:
    """The run, which has come so far that a file exists."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not awaited.exists():
        assert process.poll() is None
        time.sleep(0.1)
    return process


def worker_of(process: subprocess.Popen[str], kind: str) -> psutil.Process:
    family = psutil.Process(process.pid).children(recursive=True)
    return next(p for p in family if kind in p.name())


@pytest.mark.slow
def test_a_lost_rank_ends_the_run_typed_and_resuming_goes_on(tiny_model, mixed, reward, tmp_path):
    many = config(
        tiny_model,
        mixed,
        reward,
        tmp_path / "run",
        steps=20,
        resources={"ranks": 2, "engines": 2},
        trainer={"checkpoints": {"save_steps": 1}},
    )
    command = command_for(many, tmp_path)
    process = started(command, tmp_path / "run/checkpoints/step_000002")
    assert left_over()
    os.kill(worker_of(process, "Rank").pid, signal.SIGKILL)
    begin = time.monotonic()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "WorkerLostError" in errors
    assert time.monotonic() - begin < 120
    assert not left_over()
    assert subprocess.run(command, timeout=600, check=False).returncode == 0


@pytest.mark.slow
def test_a_run_goes_on_by_itself_after_a_lost_rank(tiny_model, mixed, reward, tmp_path):
    resources = {"ranks": 2, "engines": 2, "ray": {"max_restarts": 1}}
    trainer = {"checkpoints": {"save_steps": 1}}
    run = partial(config, tiny_model, mixed, reward, steps=6, resources=resources, trainer=trainer)
    command = command_for(run(tmp_path / "run"), tmp_path)
    process = started(command, tmp_path / "run/checkpoints/step_000001")
    os.kill(worker_of(process, "Rank").pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    assert "Started again, 1 of 1 times, with 2 ranks and 2 engines" in errors
    assert len(metrics(tmp_path / "run")) == 6
    assert not left_over()


@pytest.mark.slow
@pytest.mark.parametrize(
    "sections",
    [
        {},
        pytest.param(
            {
                "model": {"freeze_vision_tower": True, "lora": {"rank": 4, "merge": False}},
                "rollout": {"engine": "vllm"},
                "full_determinism": True,
            },
            marks=pytest.mark.vllm,
        ),
    ],
    ids=["all weights", "adapters alone"],
)
def test_a_lost_engine_costs_the_run_nothing(sections, tiny_model, mixed, reward, tmp_path):
    sections = {**sections, "resources": {"ranks": 2, "engines": 2}}
    run = partial(config, tiny_model, mixed, reward, **sections)
    run_training(run(tmp_path / "whole"))
    interrupted = run(tmp_path / "run", trainer={"checkpoints": {"save_steps": 1}})
    process = started(command_for(interrupted, tmp_path), tmp_path / "run/checkpoints/step_000001")
    os.kill(worker_of(process, "Engine").pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert "replaced, 1 of 3 times" in (tmp_path / "run/train.log").read_text()
    assert tokens(tmp_path / "whole") == tokens(tmp_path / "run")
    assert_close(tmp_path / "whole", tmp_path / "run")
    assert not left_over()


@pytest.mark.slow
def test_a_rank_for_which_no_other_waits_is_found_stuck(tiny_model, mixed, reward, tmp_path):
    """No collective call tells. The run is started again, and continues."""
    resources = {
        "ranks": 1,
        "engines": 2,
        "collective_timeout_s": 15,
        "ray": {"max_restarts": 1},
    }
    trainer = {"checkpoints": {"save_steps": 1}}
    run = partial(config, tiny_model, mixed, reward, steps=8, resources=resources, trainer=trainer)
    command = command_for(run(tmp_path / "run"), tmp_path)
    process = started(command, tmp_path / "run/checkpoints/step_000001")
    worker_of(process, "Rank").suspend()
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "rank 0 is stuck (no answer for 15 s)" in errors
    assert "Started again, 1 of 1 times, with 1 ranks and 2 engines" in errors
    assert len(metrics(tmp_path / "run")) == 8
    assert not left_over()


@pytest.mark.slow
def test_a_rank_that_is_stuck_ends_the_run_typed(tiny_model, mixed, reward, tmp_path):
    stuck = config(
        tiny_model,
        mixed,
        reward,
        tmp_path / "run",
        steps=60,
        resources={"ranks": 2, "collective_timeout_s": 15},
    )
    process = started(command_for(stuck, tmp_path), tmp_path / "run/metrics.jsonl")
    family = psutil.Process(process.pid).children(recursive=True)
    ranks = [p for p in family if "Rank" in p.name()]
    ranks[1].suspend()
    begin = time.monotonic()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "HungError" in errors
    assert "--resume continues" in errors
    assert time.monotonic() - begin < 120
    assert not left_over()
    written = [p.read_text() for p in (tmp_path / "run").glob("rank_*.stacks")]
    assert any("Timeout" in text and "rank_actor.py" in text for text in written)


@pytest.mark.slow
def test_an_engine_that_is_stuck_ends_the_run_with_its_checkpoint(
    tiny_model, mixed, reward, tmp_path
):
    many = config(
        tiny_model,
        mixed,
        reward,
        tmp_path / "run",
        steps=12,
        resources={"ranks": 2, "engines": 2, "collective_timeout_s": 60},
        rollout={"timeout_s": 20, "max_restarts": 0},
        trainer={"checkpoints": {"save_steps": 1}},
    )
    command = command_for(many, tmp_path)
    process = started(command, tmp_path / "run/checkpoints/step_000001")
    worker_of(process, "Engine").suspend()
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "WorkerLostError: rollout engine" in errors
    assert "no answer for 20 s" in errors
    assert "--resume continues from the last checkpoint" in errors
    assert not left_over()
    assert subprocess.run(command, timeout=600, check=False).returncode == 0
    assert len(metrics(tmp_path / "run")) == 12


@pytest.mark.slow
def test_a_number_that_is_not_finite_on_one_rank_stops_all_of_them(
    tiny_model, mixed, reward, tmp_path
):
    two = config(tiny_model, mixed, reward, tmp_path, resources={"ranks": 2})
    family = load_family(str(tiny_model))
    samples = read_records(mixed)[:4]
    with on_ray(two) as cluster:
        requests = [asks(family.render_prompt(s), 3, i) for i, s in enumerate(samples)]
        groups = completed(cluster.engines, requests, two.rollout.sampling)
        scored = [
            ScoredGroup(g, tuple(Reward(float(i)) for i, _ in enumerate(g.completions)))
            for g in groups
        ]
        algorithm = build_algorithm(two.algorithm)
        reference = cluster.reference
        batch = build_experience(scored, algorithm, Models(cluster.policy, reference))

        def on_ranks():
            return cluster.policy._policy.gather(LocalPolicy.weights)

        before = {name: w.clone() for name, w in on_ranks().items()}
        batch.tokens.advantages[0, 0] = float("nan")  # of one group, so of one rank
        with pytest.raises(NonFiniteError, match="the loss is nan; the weights were not changed"):
            cluster.policy.update(batch)
        after = on_ranks()
        assert all(torch.equal(before[name], after[name]) for name in before)
        batch.tokens.advantages[0, 0] = 0.5
        cluster.policy.update(batch)  # the ranks are still in step
        assert cluster.policy.version == 1


def test_a_cluster_without_room_is_named(tiny_model, mixed, reward, tmp_path):
    import ray

    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        resources = {"ranks": 3, "ray": {"start_timeout_s": 1}}
        with pytest.raises(WorkerLostError, match="no room for 4 ranks and engines"):
            run_training(config(tiny_model, mixed, reward, tmp_path / "run", resources=resources))
    finally:
        ray.shutdown()
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_machine_that_is_taken_away_ends_the_run_and_another_lets_it_go_on(
    tiny_model, mixed, reward, tmp_path
):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    other = cluster.add_node(num_cpus=2)
    try:
        many = config(
            tiny_model,
            mixed,
            reward,
            tmp_path / "run",
            steps=12,
            resources={
                "ranks": 2,
                "engines": 2,
                "ray": {
                    "address": cluster.address,
                    "start_timeout_s": 20,  # for an engine in the place of a lost one
                },
            },
            trainer={"checkpoints": {"save_steps": 1}},
        )
        path = tmp_path / "run.yaml"
        path.write_text(dump_yaml(many))
        command = [sys.executable, "-m", "mmr1.cli", "train", str(path), "--resume"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        while not (tmp_path / "run/checkpoints/step_000002").exists():
            assert process.poll() is None
            time.sleep(0.1)
        cluster.remove_node(other, allow_graceful=False)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "WorkerLostError" in errors
        cluster.add_node(num_cpus=2)
        assert subprocess.run(command, timeout=600, check=False).returncode == 0
    finally:
        cluster.shutdown()
    assert len(metrics(tmp_path / "run")) == 12
