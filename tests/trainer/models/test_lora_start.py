"""Adapters to start from: those of a checkpoint, those of peft, and those that do not fit."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

from mmr1.config import Config, ModelConfig, StoredLoraConfig
from mmr1.trainer.models import lora
from mmr1.trainer.models.loading import load_trainable, trainable_on_meta
from mmr1.trainer.models.lora import adapter_state
from mmr1.trainer.models.reference import AdapterReference
from mmr1.trainer.models.training_models import build_training_models
from mmr1.trainer.models.weights import model_weights
from tests.trainer.models.adapted import Adapted, logprobs


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


MERGES = [
    {},
    {"use_rslora": True},
    {"layers_to_transform": [1]},
    {"rank_pattern": {"v_proj": 2}, "alpha_pattern": {"v_proj": 3}},
]
DIFFERS = [
    {"lora_bias": True},
    {"trainable_token_indices": [213, 214]},
    {"alora_invocation_tokens": [600]},
    {"use_dora": True},
]


def adapters_of_peft(base: Path, folder: Path, **keys: object) -> torch.nn.Module:
    """Random adapters, written by peft."""
    plain = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32)
    torch.manual_seed(0)
    targets = ["q_proj", "v_proj", "gate_proj"]
    settings = peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False, **keys)
    model = peft.get_peft_model(plain, settings)
    for name, parameter in model.named_parameters():
        if "trainable_tokens" in name or (".lora_B." in name and name.endswith("bias")):
            parameter.data.normal_(0, 0.5)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("keys", MERGES, ids=str)
def test_merged_weights_are_those_of_peft(base, tmp_path, keys):
    merged = adapters_of_peft(base, tmp_path / "adapters", **keys).merge_and_unload().state_dict()
    ours = model_weights(load_trainable(model_config(base, tmp_path / "adapters")))
    assert ours.keys() == merged.keys()
    for name, weight in merged.items():
        torch.testing.assert_close(ours[name], weight, atol=1e-6, rtol=0)


@pytest.mark.parametrize("keys", DIFFERS, ids=str)
def test_adapters_that_do_not_merge_are_refused(base, tmp_path, monkeypatch, keys):
    """By the name of the field, and by one forward pass if the list let it through."""
    adapters_of_peft(base, tmp_path / "adapters", **keys)
    (name,) = keys
    with pytest.raises(ValueError, match=f"has {name}, which plain LoRA does not have"):
        load_trainable(model_config(base, tmp_path / "adapters"))
    monkeypatch.setattr(lora, "MERGING", lora.MERGING | {name})
    with pytest.raises(ValueError, match="with merged weights"):
        load_trainable(model_config(base, tmp_path / "adapters"))


@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_adapters_that_changed_their_base_are_refused(stored, base, tmp_path, start):
    with pytest.raises(ValueError, match=f"init_lora_weights={start}"):
        load_trainable(
            model_config(base, changed(stored[0], tmp_path / "other", init_lora_weights=start))
        )


def test_comparison_leaves_adapters_as_they_were(stored, base):
    """New ones are zero again, and stored ones those of the file."""
    new = load_trainable(ModelConfig(path=str(base), dtype="float32", lora={}))
    assert all(not tensor.any() for n, tensor in adapter_state(new).items() if ".lora_B." in n)
    own = adapter_state(load_trainable(model_config(base, stored[0])))
    written = load_file(stored[0] / "adapter_model.safetensors")
    assert all(torch.equal(own[name], tensor) for name, tensor in written.items())
