"""Files of other projects: the lines that write them, their comparison and their audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.nn.utils.rnn import pad_sequence

from mmr1_contrib.lab.audit.hooks import HOOKS
from mmr1_contrib.lab.audit.step_file import StepFile, read_step_file


def writer() -> dict[str, Any]:
    """What the lines define before they touch the project."""
    names: dict[str, Any] = {"__name__": "another"}
    exec(HOOKS["trl"].partition("from trl import")[0], names)
    return names


def padded(ours: StepFile, name: str, order: list[int]) -> torch.Tensor:
    rows = torch.split(ours.tensors[name], ours.lengths)
    return pad_sequence([rows[row] for row in order], batch_first=True)


def written(ours: StepFile, path: Path, **changed: torch.Tensor) -> Path:
    """The same step as another trainer has it: prompts repeated, rows turned round, padded."""
    order = list(reversed(range(len(ours.lengths))))
    lengths = ours.tensors["prompt/length"].tolist()
    prompts = torch.split(ours.tensors["prompt/ids"], lengths)
    flipped = [prompts[ours.prompts[row]].flip(0) for row in order]
    prompt = pad_sequence(flipped, batch_first=True).flip(1)  # padded on the left
    seen = pad_sequence([torch.ones(len(p)) for p in flipped], batch_first=True).flip(1)
    grids = ours.tensors["media/grid"]
    means = torch.split(ours.tensors["media/patch_mean"], grids.prod(1).tolist())
    pixels = torch.cat([means[ours.prompts[row]] for row in order])
    real = pad_sequence([torch.ones(ours.lengths[row]) for row in order], batch_first=True)
    names = writer()
    others = {
        "token/advantage": padded(ours, "token/advantage", order),
        "token/old_logp": padded(ours, "token/old_logp", order),
        "token/ref_logp": padded(ours, "token/ref_logp", order),
        "row/reward": ours.tensors["row/reward"][order],
        "update/loss": ours.tensors["update/loss"][:1],
        **names["media"](
            pixels.repeat_interleave(196, 1).view(len(pixels), -1),
            torch.stack([grids[ours.prompts[row]] for row in order]),
            [1] * len(order),
        ),
        **changed,
    }
    ids = padded(ours, "token/ids", order)
    mask = changed.pop("mask", padded(ours, "token/mask", order))
    others.pop("mask", None)
    names["write_step"](path, prompt, seen, ids, real, mask, others)
    return path


@pytest.fixture
def step(recorded) -> tuple[Path, StepFile]:
    run = recorded("algorithm.ppo_mini_batch_size=null", "algorithm.ppo_epochs=2")
    return run, read_step_file(next((run / "steps").glob("*.safetensors")))


@pytest.mark.parametrize("project", HOOKS)
def test_hook_prints_lines_that_compile(mmr1, project: str) -> None:
    code, out, _ = mmr1("audit", "--hook", project)
    assert code == 0
    compile(out, project, "exec")


def test_unknown_project_has_no_hook(mmr1) -> None:
    code, _, error = mmr1("audit", "--hook", "nobody")
    assert code == 2
    assert "trl" in error


def test_padding_and_order_are_no_difference(step, mmr1, tmp_path: Path) -> None:
    _, ours = step
    theirs = written(ours, tmp_path / "theirs.safetensors")
    code, out, error = mmr1("audit", ours.path, theirs)
    assert code == 0, out + error
    assert "media/patch_mean     equal" in out


def test_foreign_file_follows_our_configuration(step, mmr1, tmp_path: Path) -> None:
    run, ours = step
    theirs = written(ours, tmp_path / "theirs.safetensors")
    code, out, error = mmr1("audit", theirs, "--config", run / "config.yaml")
    assert code == 0, out + error
    assert "update/loss (1)      equal" in out


def test_foreign_file_differs_where_it_does(step, mmr1, tmp_path: Path) -> None:
    run, ours = step
    order = list(reversed(range(len(ours.lengths))))
    mask = padded(ours, "token/mask", order)
    mask[:, 0] = 0
    theirs = written(ours, tmp_path / "theirs.safetensors", mask=mask)
    code, out, _ = mmr1("audit", theirs, "--config", run / "config.yaml")
    assert code == 1
    assert "token/mask; it looks like: the first token of each completion is left out" in out


def test_prompt_of_no_row_cannot_be_audited(step, mmr1, tmp_path: Path) -> None:
    run, ours = step
    ids = ours.tensors["prompt/ids"].clone()
    ids[-3] += 1
    changed = StepFile(ours.path, {**ours.tensors, "prompt/ids": ids}, ours.manifest)
    theirs = written(changed, tmp_path / "theirs.safetensors")
    code, _, error = mmr1("audit", theirs, "--config", run / "config.yaml")
    assert code == 2
    assert "the text of none of 40 rows" in error


def test_step_of_trl_differs_where_it_should(coloured, tiny_model, mmr1, tmp_path: Path) -> None:
    """TRL samples tokens that stand for media, and mmr1 never does: the first difference."""
    trl = pytest.importorskip("trl", reason="trl is not installed")
    import datasets
    from transformers import AutoProcessor

    rows = [json.loads(row) for row in (coloured / "rl.jsonl").read_text().splitlines()]
    parts = [row["messages"][0]["content"] for row in rows]
    table = {
        "prompt": [[{"role": "user", "content": text["text"]}] for _, text in parts],
        "image": [str(coloured / image["path"]) for image, _ in parts],
    }
    arguments = trl.GRPOConfig(
        output_dir=str(tmp_path / "trl"),
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=48,
        max_steps=1,
        beta=0.1,
        num_iterations=2,
        learning_rate=1e-3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        top_k=0,
        loss_type="dapo",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        for name in ("_calculate_rewards", "_generate_and_score_completions", "_compute_loss"):
            patch.setattr(trl.GRPOTrainer, name, getattr(trl.GRPOTrainer, name))
        exec(HOOKS["trl"], {"__name__": "trl"})
        trl.GRPOTrainer(
            model=str(tiny_model),
            reward_funcs=lambda completions, **_: [
                len(c[0]["content"]) % 7 / 7 for c in completions
            ],
            args=arguments,
            train_dataset=datasets.Dataset.from_dict(table).cast_column("image", datasets.Image()),
            processing_class=AutoProcessor.from_pretrained(tiny_model),
        ).train()
    ours = {
        "model": {"path": str(tiny_model), "dtype": "float32"},
        "data": {"train": str(coloured / "rl.jsonl"), "train_batch_size": 4},
        "rollout": {"engine": "hf", "n": 4, "max_response_length": 48},
        "rewards": {"format": 1.0},
        "algorithm": {
            "kl": {"coef": 0.1},
            "advantage": {"type": "grpo", "epsilon": 1e-4},
            "loss": {"agg_mode": "token-mean"},
        },
        "trainer": {"max_steps": 1, "output_dir": str(tmp_path / "ours")},
    }
    config = tmp_path / "ours.yaml"
    config.write_text(yaml.safe_dump(ours))
    file = min(tmp_path.glob("trl_*.safetensors"))
    code, out, error = mmr1("audit", file, "--config", config, "--all")
    assert code == 1, out + error
    assert "first difference: token/old_logp; it looks like: tokens that are never sampled" in out
    assert "token/advantage      equal" in out
