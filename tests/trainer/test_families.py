"""Every command with models of other families than the one that the other tests train."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmr1.config import ModelConfig
from mmr1.evaluation.benchmarks import run_evaluations
from mmr1.trainer.models.loading import load_trainable
from mmr1.trainer.models.parts import parameters_of
from mmr1.trainer.runs.export import export
from mmr1.trainer.sft import run_sft
from mmr1.trainer.train import run_training
from mmr1.vision.families.loading import find_architecture
from tests.jsonl import read_jsonl
from tests.trainer.family_models import NAMES, RUN, SEEING, TEXT, new_model, write_sums
from tests.trainer.family_runs import config_of
from tests.trainer.resumption import LENGTH_REWARD


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for name in NAMES:
        new_model(name, folder / name)
    return {name: folder / name for name in NAMES}


@pytest.fixture(scope="module")
def sums(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sums")
    write_sums(folder)
    return folder


@pytest.mark.parametrize("name", RUN)
def test_demonstrations_rollouts_evaluation_and_export(name, models, sums, digits, tmp_path):
    data = sums if name in TEXT else digits
    keys = {
        "data": {"train_batch_size": 4},
        "trainer": {"max_steps": 3, "checkpoints": {"save_steps": 3}, "logging_steps": 1000},
    }
    sft = run_sft(config_of(models[name], data, tmp_path / "sft", "sft.jsonl", **keys))
    losses = [row["loss"] for row in read_jsonl(tmp_path / "sft/metrics.jsonl")]
    assert losses[-1] < losses[0]

    lora = {"lora": {"rank": 2}}
    keys = {"algorithm": {"kl": {"coef": 0.01}}, "model": lora}
    rl = config_of(sft, data, tmp_path / "rl", "rl.jsonl", **keys)
    checkpoint = run_training(rl)
    for row in read_jsonl(tmp_path / "rl/metrics.jsonl"):
        assert row["rollout/logprob_diff_mean"] < 1e-5
        assert (row["tokens/vision"] > 0) == (name in SEEING)
    results, _ = run_evaluations(config_of(checkpoint, data, tmp_path / "eval", "rl.jsonl"))
    assert results
    exported = export(checkpoint, tmp_path / "exported")
    auto_class = find_architecture(str(exported)).auto_class
    merged, trained = (auto_class.from_pretrained(p).state_dict() for p in (exported, checkpoint))
    assert merged.keys() == trained.keys()
    assert all(torch.equal(merged[key], trained[key]) for key in merged)


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize("name", NAMES)
def test_rollouts_by_vllm_follow_the_weights(name, models, sums, digits, tmp_path):
    """Steps so large that the weights of the step before, or experts without theirs, would show."""
    pytest.importorskip("vllm")
    (tmp_path / "length.py").write_text(LENGTH_REWARD)
    (tmp_path / "accident").write_text("")
    length = {"type": f"{tmp_path}/length.py:reward", "sandbox": None}
    keys = {"rewards": {"length": length}}
    data = sums if name in TEXT else digits
    config = config_of(models[name], data, tmp_path / "rl", "rl.jsonl", **keys)
    bfloat16 = {"dtype": "bfloat16"} if name == "qwen3_5" else {}
    engine = {"type": "vllm", **bfloat16}
    run_training(config.changed({"rollout.engine": engine, "optimizer.lr": 1e-2}))
    rows = read_jsonl(tmp_path / "rl/metrics.jsonl")
    gaps = [row["rollout/logprob_diff_mean"] for row in rows]
    print(f"{name}: {gaps}")
    assert rows[0]["grad_norm"] > 0.01
    assert max(gaps) < (0.05 if name == "qwen3_5" else 1e-5)


@pytest.mark.parametrize("name", SEEING)
def test_what_sees_is_frozen_with_its_projector(name, models):
    """vLLM keeps what a frozen tower has seen, and that is behind the projector."""
    keys = {"path": str(models[name]), "dtype": "float32", "freeze_vision_tower": True}
    model = load_trainable(ModelConfig(**keys))
    sees = [parameters_of(model, p, "key") for p in ("vision_tower", "multi_modal_projector")]
    assert all(sees)
    language = parameters_of(model, "language_model", "key")
    assert {n for n, p in model.named_parameters() if p.requires_grad} == language
    assert len(language) + sum(map(len, sees)) == len(list(model.parameters()))
    adapted = load_trainable(ModelConfig(**keys, lora={"rank": 2}))
    of_text = {name.removesuffix(".weight") for name in language if ".layers." in name}
    layers = {n for n, p in adapted.named_parameters() if p.requires_grad}
    assert layers
    for layer in layers:
        name = layer.removeprefix("base_model.model.").partition(".lora_")[0]
        assert name in of_text, layer
