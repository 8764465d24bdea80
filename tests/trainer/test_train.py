"""Whole runs, small: what they write, that they repeat, that their checkpoints load anywhere."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmr1.config import Config
from mmr1.config.file import load_config
from mmr1.evaluation.benchmarks import run_evaluations
from mmr1.report.run_reader import open_run
from mmr1.rollout.hf import HfEngine
from mmr1.trainer.models.optimizer import NonFiniteError
from mmr1.trainer.run import with_epochs
from mmr1.trainer.sampling.parity import ParityError
from mmr1.trainer.sft import run_sft
from mmr1.trainer.train import run_training
from tests.trainer.rl_runs import lines, rl

LOGGED = {
    "step",
    "reward/mean",
    "rewards/format/mean",
    "rewards/math/mean",
    "reward/num_invalid",
    "kl",
    "entropy",
    "loss",
    "grad_norm",
    "completions/mean_length",
    "rollout/logprob_diff_mean",
    "time/rollout",
    "time/reward",
    "time/experience",
    "time/update",
    "time/sync",
    "time/step",
    "tokens/prompt",
    "tokens/vision",
    "tokens/completion",
}


@pytest.fixture(scope="module")
def warm(tiny_model, digits, tmp_path_factory) -> Path:
    """A checkpoint that knows the format well enough for RL to have a signal."""
    out = tmp_path_factory.mktemp("sft") / "run"
    config = Config(
        model={"path": str(tiny_model), "dtype": "float32"},
        data={"train": str(digits / "sft.jsonl"), "train_batch_size": 32},
        optimizer={"lr": 1e-3},
        trainer={"max_steps": 100, "output_dir": str(out), "logging_steps": 1000},
    )
    return run_sft(config)


@pytest.fixture(scope="module")
def run(warm, digits, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("rl") / "run"
    run_training(rl(warm, digits, out))
    return out


def test_supervised_loss_falls_and_is_the_mean_negative_log_likelihood(warm, tiny_model):
    logged = lines(warm.parents[1] / "metrics.jsonl")
    assert len(logged) == 100
    # An untrained model gives each of its 640 - 6 allowed tokens about the same probability.
    assert logged[0]["loss"] == pytest.approx(math.log(634), abs=0.3)
    assert logged[-1]["loss"] < 1


def test_the_output_directory(run, warm, digits):
    assert load_config(run / "config.yaml") == rl(warm, digits, run)
    logged = lines(run / "metrics.jsonl")
    assert [row["step"] for row in logged] == [1, 2, 3]
    for row in logged:
        assert set(row) >= LOGGED
        assert all(math.isfinite(value) for value in row.values())
        assert row["rollout/logprob_diff_mean"] < 1e-5
        # 4 prompts, each an image of 56 x 56 pixels: 4 tokens.
        assert row["tokens/vision"] == 16
    assert logged[-1]["kl"] > logged[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert sorted(p.name for p in (run / "rollouts").iterdir()) == [
        f"step_{step:06d}.jsonl" for step in (1, 2, 3)
    ]
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step_000002", "step_000003"]


def test_the_log_has_a_line_for_each_phase(run):
    lines = (run / "train.log").read_text().splitlines()
    took = [re.sub(r".*runs.step: (.*) took .*", r"\1", line) for line in lines if " took " in line]
    steps = [
        f"step {step}: {phase}"
        for step in (1, 2, 3)
        for phase in ("rollout", "reward", "experience", "update", "sync", "checkpoint")
        if phase != "checkpoint" or step != 1  # saved every second step, and at the end
    ]
    start = [
        f"start: {p}"
        for p in ("starting the rollout engine", "comparing log-probs of engine and trainer")
    ]
    assert took == [*start, *steps, "step 3: validation"]
    assert all(re.match(r"\d{4}-\d\d-\d\d \S+ INFO mmr1\.", line) for line in lines)


def test_the_log_level_of_the_command_line(run, capfd):
    for level, logged in (("info", True), ("warning", False)):
        arguments = ["train", str(run / "config.yaml"), "--dry-run", "--log-level", level]
        subprocess.run([sys.executable, "-m", "mmr1.cli", *arguments], check=True)
        assert ("INFO mmr1.cli: configuration" in capfd.readouterr().err) == logged


def test_rollouts_tell_the_whole_story(run, digits):
    rows = lines(run / "rollouts/step_000001.jsonl")
    assert len(rows) == 4
    for row in rows:
        assert Path(row["media"][0]["path"]).is_file()
        assert "<|image_pad|>" in row["prompt"]
        assert len(row["completions"]) == 4
        rewards = [c["reward"] for c in row["completions"]]
        mean = sum(rewards) / 4
        for completion in row["completions"]:
            components = completion["components"]
            assert completion["reward"] == pytest.approx(
                0.5 * components["format"] + components["math"]
            )
            sign = (completion["reward"] > mean) - (completion["reward"] < mean)
            assert sign == (completion["advantage"] > 0) - (completion["advantage"] < 0)


def test_the_checkpoint_is_an_ordinary_model(run):
    path = run / "checkpoints/step_000003"
    model = AutoModelForImageTextToText.from_pretrained(path)
    processor = AutoProcessor.from_pretrained(path)
    batch = processor(text=["<|im_start|>user\nHi<|im_end|>\n"], return_tensors="pt")
    assert torch.isfinite(model(**batch).logits).all()
    assert type(processor).__name__ == "Qwen2_5_VLProcessor"


def test_evaluation_in_a_new_run_gives_what_training_ended_with(run, warm, digits, tmp_path):
    ended = json.loads((run / "eval/result.json").read_text())
    config = rl(run / "checkpoints/step_000003", digits, tmp_path).changed(
        {"eval.output_dir": str(tmp_path)}
    )
    result = run_evaluations(config)[0]["", ""]
    assert json.loads((tmp_path / "result.json").read_text()) == ended
    assert result.prompts == 40
    rows = lines(tmp_path / "completions.jsonl")
    right = [row["right"] for row in rows if row["mode"] == "greedy"]
    assert sum(right) / len(right) == result.modes["greedy"].accuracy


def test_the_same_seed_gives_the_same_metrics(run, warm, digits, tmp_path):
    run_training(rl(warm, digits, tmp_path / "again"))

    def timeless(path: Path) -> list[dict]:
        rows = lines(path / "metrics.jsonl")
        return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]

    assert timeless(tmp_path / "again") == timeless(run)


def test_validation_while_training(run, warm, digits, tmp_path):
    """Before the first step, after the second and after the last, by the weights of that step."""
    keys = {
        "trainer.validation.steps": 2,
        "trainer.validation.before_train": True,
        "trainer.checkpoints.metric_for_best_model": "eval/sampled",
    }
    run_training(rl(warm, digits, tmp_path / "run").changed(keys))
    out = tmp_path / "run"
    rows = lines(out / "metrics.jsonl")
    assert [row["step"] for row in rows if "eval/greedy" in row] == [0, 2, 3]
    trained = [
        {k: v for k, v in row.items() if not k.startswith(("time/", "eval/"))} for row in rows[1:]
    ]
    plain = [
        {k: v for k, v in row.items() if not k.startswith("time/")}
        for row in lines(run / "metrics.jsonl")
    ]
    assert trained == plain  # it changes nothing of what is learned

    # The end of the run is validated once; another run's evaluation gave the same.
    ended = json.loads((out / "eval/result.json").read_text())
    assert ended == json.loads((run / "eval/result.json").read_text())
    for mode in ("greedy", "sampled"):
        assert rows[-1][f"eval/{mode}"] == ended[mode]["accuracy"]
        assert rows[-1][f"eval/{mode}/format"] == ended[mode]["components"]["format"]
    # The starting weights and those after the second step, evaluated by themselves.
    for number, model in ((0, warm), (2, run / "checkpoints/step_000002")):
        result = run_evaluations(rl(model, digits, tmp_path))[0]["", ""]
        (row,) = [row for row in rows if row["step"] == number]
        assert row["eval/greedy"] == result.modes["greedy"].accuracy
        assert row["eval/sampled"] == result.modes["sampled"].accuracy

    for step in (0, 2, 3):
        held_out = lines(out / f"validation/step_{step:06d}.jsonl")
        assert [row["mode"] for row in held_out] == ["greedy"] * 40 + ["sampled"] * 40
    shown = open_run(out)
    assert shown.steps() == [0, 1, 2, 3]
    assert {row["task"].split(", ")[:2][-1] for row in shown.rollouts(0)} == {"greedy", "sampled"}
    assert len(shown.rollouts(2)) == 4 + 80
    metrics = {
        path.name: json.loads((path / "manifest.json").read_text())["metrics"]["eval/sampled"]
        for path in (out / "checkpoints").iterdir()
    }
    assert metrics == {f"step_{row['step']:06d}": row["eval/sampled"] for row in rows[2:]}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["trainer.validation.steps=2"], r"trainer\.validation\.data' is missing"),
        (["trainer.validation.before_train=true"], r"trainer\.validation\.data' is missing"),
        (
            [
                "trainer.validation.data=x",
                "trainer.checkpoints={save_steps: 2, metric_for_best_model: eval/greedy}",
            ],
            "every checkpoint needs a validation; make save_steps a multiple",
        ),
        (
            [
                "trainer.validation={data: x, steps: 4}",
                "trainer.checkpoints={save_steps: 6, metric_for_best_model: eval/greedy}",
            ],
            r"checkpoints\.save_steps=6, trainer\.validation\.steps=4: every checkpoint needs",
        ),
        (
            [
                "trainer.validation={data: x, steps: 1}",
                "trainer.checkpoints={save_steps: 1, metric_for_best_model: eval/sampled}",
                "eval.sampled=null",
            ],
            "no validation logs it; .* eval/sampled with eval.sampled",
        ),
        (
            [
                "trainer.validation={data: x, steps: 1}",
                "trainer.checkpoints={save_steps: 1, metric_for_best_model: eval/accuracy}",
            ],
            "no validation logs it; eval/greedy is always there",
        ),
    ],
)
def test_validations_that_make_no_sense_are_refused(overrides, said):
    with pytest.raises(ValueError, match=said):
        load_config(None, ["model.path=a", *overrides])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("reward", r"step 1 logs no 'reward' \(did you mean 'reward/\w+'\?\)"),
        (
            "eval/greedy/formt",
            r"step 2 logs no .* \(did you mean 'eval/greedy/format",
        ),
    ],
)
def test_best_metric_that_nothing_logs_ends_the_run(warm, digits, tmp_path, name, said):
    keys = {"trainer.validation.steps": 2, "trainer.checkpoints.metric_for_best_model": name}
    with pytest.raises(ValueError, match=said):
        run_training(rl(warm, digits, tmp_path / "run").changed(keys))


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({"total_epochs": 1.5}, 15),
        ({"total_epochs": 2, "max_steps": 12}, 12),
        ({"total_epochs": 2, "max_steps": 100}, 20),
        ({"total_epochs": 0.01}, 1),
        ({"max_steps": 7}, 7),
    ],
)
def test_epochs_are_steps_of_so_many_batches(keys, steps):
    """40 samples in batches of 4 are ten steps."""
    config = Config(model={"path": "any"}, trainer=keys)
    resolved = with_epochs(config, 40, 4)
    assert resolved.trainer.max_steps == steps
    assert with_epochs(resolved, 40, 4) == resolved
    assert with_epochs(Config.model_validate(resolved.model_dump()), 40, 4) == resolved


def test_a_run_of_an_epoch_and_a_half(warm, digits, tmp_path, capsys):
    records = (digits / "rl.jsonl").read_text().splitlines()[:8]
    (tmp_path / "few.jsonl").write_text("".join(f"{record}\n" for record in records))
    config = rl(warm, digits, tmp_path / "run").changed(
        {
            "data.train": str(tmp_path / "few.jsonl"),
            "data.media_root": str(digits),
            "trainer.validation": None,
            "trainer.max_steps": None,
            "trainer.total_epochs": 1.5,
        }
    )
    checkpoint = run_training(config)
    assert checkpoint.name == "step_000003"
    rows = lines(tmp_path / "run/metrics.jsonl")
    assert [row["lr"] for row in rows] == pytest.approx([3e-5, 6e-5, 9e-5])  # warm-up of ten
    assert run_training(config, resume=True) == checkpoint
    assert "all 3 steps are done" in capsys.readouterr().out


def test_engine_and_trainer_are_compared_on_every_kind_of_prompt(
    tiny_model, mixed, tmp_path, capsys
):
    """Three images, and an image beside a video, come after the four kinds of the others."""
    rows = [json.loads(line) for line in mixed.read_text().splitlines()]
    one, two, video = rows[1], rows[2], rows[3]
    three = {**two, "id": "three", "images": [*two["images"], *one["images"]]}
    three["messages"] = [{"role": "user", "content": "<image><image><image>?"}]
    image = {"type": "image", "path": one["images"][0]}
    clip = video["messages"][0]["content"][0]
    both = {**video, "id": "both", "messages": [{"role": "user", "content": [image, clip]}]}
    records = mixed.with_name("more.jsonl")
    records.write_text("".join(json.dumps(row) + "\n" for row in (*rows, three, both)))
    run_training(
        rl(tiny_model, mixed.parent, tmp_path / "run").changed(
            {
                "data.train": str(records),
                "data.train_batch_size": 1,
                "rollout.n": 2,
                "rollout.max_prompt_length": 488,
                "trainer.validation": None,
                "trainer.max_steps": 1,
            }
        )
    )
    said = " ".join(capsys.readouterr().out.split())
    assert "engine and trainer agree on 6 kinds of prompt" in said


def test_weights_that_arrive_otherwise_are_found_before_the_first_step(
    warm, digits, tmp_path, monkeypatch
):
    """The engine and the policy read the same files: only a transfer tells."""
    engine = copy.deepcopy(AutoModelForImageTextToText.from_pretrained(warm))

    def garbled(self, weights, version):
        self._together = dataclasses.replace(self._together, model=engine)
        engine.load_state_dict({name: 0.9 * weight for name, weight in weights.items()})

    monkeypatch.setattr(HfEngine, "load", garbled)
    with pytest.raises(ParityError, match="log-probs of the rollout engine and the trainer"):
        run_training(rl(warm, digits, tmp_path / "run"))
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_epochs_that_are_too_few_are_refused_once_they_are_known():
    critic = {"name": "ppo", "advantage": {"critic": {"warmup_steps": 5}}}
    config = Config(model={"path": "any"}, algorithm=critic, trainer={"total_epochs": 1})
    assert with_epochs(config, 24, 4).trainer.max_steps == 6
    with pytest.raises(ValueError, match="the policy would never learn"):
        with_epochs(config, 20, 4)


def test_another_seed_gives_others(run, warm, digits, tmp_path):
    config = rl(warm, digits, tmp_path / "other").changed(seed=1)
    run_training(config)
    assert (
        lines(tmp_path / "other/rollouts/step_000001.jsonl")[0]["id"]
        != (lines(run / "rollouts/step_000001.jsonl")[0]["id"])
    )


def test_a_step_that_fails_on_its_numbers_leaves_its_batch(warm, digits, tmp_path):
    config = rl(warm, digits, tmp_path / "run").changed(
        {"optimizer.lr": 1e30, "optimizer.scheduler.warmup_steps": 0}
    )
    with pytest.raises(NonFiniteError, match=r"step \d+: .* Its batch is in .*step_\d+.jsonl"):
        run_training(config)
    failed = max((tmp_path / "run/rollouts").iterdir())
    assert len(lines(failed)) == 4


@pytest.mark.vllm
def test_training_and_evaluating_through_vllm(warm, digits, tmp_path):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    checkpoint = run_training(rl(warm, digits, tmp_path / "run", engine="vllm"))
    for row in lines(tmp_path / "run/metrics.jsonl"):
        assert row["rollout/logprob_diff_mean"] < 1e-5
    versions = {
        c["policy_version"]
        for row in lines(tmp_path / "run/rollouts/step_000003.jsonl")
        for c in row["completions"]
    }
    assert versions == {2}  # the third step samples after two updates
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    config["model"]["path"] = str(checkpoint)
    result = run_evaluations(Config(**config))[0]["", ""]
    ended = json.loads((tmp_path / "run/eval/result.json").read_text())
    assert result.modes["greedy"].accuracy == ended["greedy"]["accuracy"]
