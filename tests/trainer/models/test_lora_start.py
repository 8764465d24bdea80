"""Adapters to start from: those of a checkpoint, those of peft, and those that do not fit."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import peft
import pytest
import torch

from mmr1.config import Config, ModelConfig, StoredLoraConfig
from mmr1.trainer.models.loading import load_trainable, trainable_on_meta
from mmr1.trainer.models.lora import adapter_state
from mmr1.trainer.models.reference import AdapterReference
from mmr1.trainer.models.training_models import build_training_models
from tests.trainer.models.test_lora import Adapted, logprobs


@pytest.fixture
def base(parts, tmp_path) -> Path:
    """A folder with the tests' model, which the adapters are on."""
    parts[1].save_pretrained(tmp_path / "base")
    parts[0].processor.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def stored(parts, tmp_path) -> tuple[Path, torch.Tensor]:
    """The folder ``adapter`` of a checkpoint, and the log-probs of its policy."""
    own = Adapted(parts, rank=3, alpha=7.0, target_modules=("q_proj", "up_proj"))
    own.update()
    own.policy.snapshot()(tmp_path / "checkpoint")
    return tmp_path / "checkpoint/adapter", own.policy.logprobs(own.groups)


def model_config(base: Path, folder: Path, **keys: object) -> ModelConfig:
    return ModelConfig(path=str(base), dtype="float32", lora={"path": str(folder)}, **keys)


def test_a_run_starts_from_the_adapters_of_another(stored, parts, base):
    folder, expected = stored
    model = load_trainable(model_config(base, folder))
    torch.testing.assert_close(logprobs(parts, model), expected)
    assert (model.peft_config["default"].r, model.peft_config["default"].lora_alpha) == (3, 7.0)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert trained == {n for n, _ in model.named_parameters() if ".lora_" in n}
    on_meta = trainable_on_meta(model_config(base, folder))  # as each rank makes it
    shapes = {n: p.shape for n, p in model.named_parameters()}
    assert {n: p.shape for n, p in on_meta.named_parameters()} == shapes


def test_the_reference_is_the_policy_at_the_start(stored, parts, base):
    folder, expected = stored
    config = Config(
        model=model_config(base, folder),
        rollout={"engine": "hf"},
        algorithm={"kl": {"coef": 0.1}},
    )
    family, _, media, scored = parts
    models = build_training_models(config, family, media)
    groups = [s.group for s in scored]
    assert isinstance(models.reference, AdapterReference)
    torch.testing.assert_close(models.reference.logprobs(groups), expected)
    assert (expected - logprobs(parts, parts[1])).abs().max() > 1e-2
    torch.testing.assert_close(models.policy.logprobs(groups), expected)


def test_adapters_of_peft_itself(parts, base, tmp_path):
    torch.manual_seed(1)
    settings = peft.LoraConfig(
        r=2, use_rslora=True, target_modules=["v_proj"], init_lora_weights=False
    )
    theirs = peft.get_peft_model(copy.deepcopy(parts[1]), settings)
    theirs.save_pretrained(tmp_path / "peft")
    model = load_trainable(model_config(base, tmp_path / "peft"))
    torch.testing.assert_close(logprobs(parts, model), logprobs(parts, theirs))
    for name, tensor in adapter_state(theirs).items():
        assert torch.equal(adapter_state(model)[name], tensor), name


def changed(folder: Path, out: Path, **keys: object) -> Path:
    shutil.copytree(folder, out)
    settings = json.loads((out / "adapter_config.json").read_text())
    (out / "adapter_config.json").write_text(json.dumps({**settings, **keys}))
    return out


def test_what_does_not_fit_is_refused(stored, base, tmp_path):
    folder, _ = stored
    for name, keys, said in (
        ("rank", {"r": 5}, r"does not fit the model: \d+ weights differ"),
        ("layers", {"target_modules": ["q_proj"]}, "does not fit the model"),
        ("nothing", {"target_modules": ["no_such"]}, "cannot be read .*no_such"),
        ("dora", {"use_dora": True}, "has use_dora, which plain LoRA does not have"),
        ("head", {"modules_to_save": ["lm_head"]}, "has modules_to_save"),
    ):
        with pytest.raises(ValueError, match=said):
            load_trainable(model_config(base, changed(folder, tmp_path / name, **keys)))
    with pytest.raises(ValueError, match=r"has no adapters; name a folder with adapter_config"):
        load_trainable(model_config(base, tmp_path))
    broken = changed(folder, tmp_path / "broken")
    (broken / "adapter_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="cannot be read"):
        load_trainable(model_config(base, broken))
    for keys in ({"rank": 4}, {"alpha": 8.0}, {"target_modules": ("q_proj",)}):
        with pytest.raises(ValueError, match=next(iter(keys))):
            ModelConfig(path="a", lora={"path": str(folder), **keys})
    again = StoredLoraConfig(path=str(folder))
    assert StoredLoraConfig(**again.model_dump()) == again  # as a resumed run reads it


def test_a_tower_that_has_adapters_is_not_frozen(parts, base, tmp_path):
    settings = peft.LoraConfig(r=2, target_modules=["qkv", "q_proj"], init_lora_weights=False)
    peft.get_peft_model(copy.deepcopy(parts[1]), settings).save_pretrained(tmp_path / "both")
    with pytest.raises(ValueError, match=r"set model\.freeze_vision_tower as they were trained"):
        load_trainable(model_config(base, tmp_path / "both", freeze_vision_tower=True))
    model = load_trainable(model_config(base, tmp_path / "both"))
    assert any("visual" in n for n, p in model.named_parameters() if p.requires_grad)


def test_pickled_adapters_are_not_loaded(tiny_model, tmp_path):
    """A pickle can run code."""
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    torch.save({}, tmp_path / "adapter_model.bin")
    config = ModelConfig(path=str(tiny_model), lora={"path": str(tmp_path)})
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors"):
        load_trainable(config)
