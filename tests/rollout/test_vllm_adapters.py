"""LoRA adapters that vLLM adds itself: what it samples against the policy's own log-probs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText

from mmr1.config import Config, NewLoraConfig, StoredLoraConfig
from mmr1.config.file import config_from
from mmr1.rollout.vllm_adapters import AdapterShape, adapter_shape
from mmr1.trainer.models.lora import add_adapters
from mmr1.trainer.train import run_training
from tests.jsonl import read_jsonl


def test_their_shape_is_the_configurations_or_that_of_the_stored_ones(tiny_model, tmp_path):
    assert adapter_shape(None) is None
    assert adapter_shape(NewLoraConfig(rank=4)) is None  # merged
    made = adapter_shape(NewLoraConfig(rank=4, alpha=6, merge=False))
    assert made == AdapterShape(4, 6)
    assert (made.room, AdapterShape(64, 1).room) == (8, 64)
    with pytest.raises(ValueError, match=r"rank 600 and model\.lora\.merge=false"):
        _ = AdapterShape(600, 1).room
    stored = with_adapters(tiny_model, tmp_path / "adapters")
    assert adapter_shape(StoredLoraConfig(path=str(stored), merge=False)) == AdapterShape(5, 20)
    settings = json.loads((stored / "adapter_config.json").read_text())
    (stored / "adapter_config.json").write_text(json.dumps({**settings, "use_rslora": True}))
    with pytest.raises(ValueError, match=r"has use_rslora, which the engine does not know"):
        adapter_shape(StoredLoraConfig(path=str(stored), merge=False))


def with_adapters(model: Path, folder: Path) -> Path:
    """Adapters that change what the model says."""
    loaded = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32)
    adapted = add_adapters(loaded, NewLoraConfig(rank=5, alpha=20), freeze_vision_tower=True)
    torch.manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapted.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        "rollout.engine=hf",
        "model.freeze_vision_tower=false",
        "model.lora.load_in_4bit=true",
    ],
)
def test_what_adapters_alone_cannot_is_refused(changes):
    tree = {"model": {"path": "m", "freeze_vision_tower": True, "lora": {"merge": False}}}
    config_from(tree)
    with pytest.raises(ValueError, match=r"model\.lora\.merge=false.*leave model\.lora\.merge out"):
        config_from(tree, [changes])


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.parametrize(
    ("resources", "engine", "ahead", "core_apart"),
    [
        ({}, "vllm", 0, "0"),
        ({}, "vllm", 0, "1"),
        ({"ranks": 2}, "vllm", 0, "0"),
        ({"ranks": 1, "engines": 2}, "vllm", 1, "0"),
        ({"ranks": 2}, "vllm", 0, "1"),
        ({"ranks": 2}, {"colocate": True}, 0, "0"),
    ],
    ids=[
        *("one process", "core apart", "two ranks", "two engines, ahead"),
        *("core apart on Ray", "colocated"),
    ],
)
def test_what_is_sampled_is_of_the_policy_from_the_first_step_on(
    resources, engine, ahead, core_apart, tiny_model, digits, tmp_path, monkeypatch
):
    """It starts from adapters that the engine did not read, and moves away from them."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", core_apart)
    adapters = with_adapters(tiny_model, tmp_path / "adapters")
    reward = tmp_path / "length.py"
    reward.write_text("def reward(completion, answer, **sample):\n    return len(completion) / 7\n")
    config = Config(
        model={
            "path": str(tiny_model),
            "dtype": "float32",
            "freeze_vision_tower": True,
            "lora": {"path": str(adapters), "merge": False},
        },
        data={"train": str(digits / "rl.jsonl"), "train_batch_size": 2},
        rollout={
            "n": 4,
            "max_prompt_length": 120,
            "max_response_length": 8,
            "max_off_policy_steps": ahead,
            "engine": engine,
        },
        resources=resources,
        rewards={"length": {"type": f"{reward}:reward", "sandbox": None}},
        algorithm={"name": "reinforce", "kl": {"coef": 0.05}},
        optimizer={"lr": 0.02, "scheduler": {"type": "constant", "warmup_steps": 0}},
        trainer={"max_steps": 3, "output_dir": str(tmp_path / "run"), "threads": 1},
    )
    run_training(config)
    lines = read_jsonl(tmp_path / "run/metrics.jsonl")
    assert [line["rollout/staleness"] for line in lines] == [0, ahead, ahead]
    assert all((line["rollout/logprob_diff_mean"] < 1e-5) == (not ahead) for line in lines[1:])
    assert lines[0]["rollout/logprob_diff_mean"] < 1e-5
    assert lines[0]["kl"] < 1e-6
    assert lines[2]["kl"] > 1e-2
