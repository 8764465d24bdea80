"""QLoRA: the base in 4 bits, what is trained, what engines and checkpoints get."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText, BitsAndBytesConfig

from mmr1.config import Config, ModelConfig
from mmr1.estimate.shapes import read_shapes
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.models.loading import load_trainable
from mmr1.trainer.models.quantization import keep_layout, quantized_weights
from mmr1.trainer.models.reference import AdapterReference
from mmr1.trainer.models.training_models import build_training_models
from mmr1.trainer.sampling.experience import Models, build_experience
from tests.trainer.models.adapted import logprobs

INSTALLED = importlib.util.find_spec("bitsandbytes") is not None
needs_bitsandbytes = pytest.mark.skipif(not INSTALLED, reason="bitsandbytes is not installed")


@pytest.fixture
def base(parts, tmp_path) -> Path:
    parts[1].save_pretrained(tmp_path / "base")
    parts[0].processor.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def config(base: Path, **model: object) -> Config:
    lora = {"rank": 2, "load_in_4bit": True}
    return Config(
        model={"path": str(base), "dtype": "float32", "lora": lora, **model},
        rollout={"engine": "hf"},
        algorithm={"kl": {"coef": 0.1}},
        optimizer={"lr": 1e-2, "scheduler": {"warmup_steps": 0}},
    )


@pytest.mark.skipif(INSTALLED, reason="bitsandbytes is installed")
def test_without_bitsandbytes_it_is_refused(base):
    with pytest.raises(ValueError, match=r"not installed; pip install 'mmr1\[qlora\]'"):
        load_trainable(config(base).model)


@needs_bitsandbytes
@pytest.mark.parametrize("freeze_vision_tower", [False, True])
def test_adapters_learn_on_a_base_in_4_bits(parts, base, tmp_path, freeze_vision_tower):
    from bitsandbytes.nn import Params4bit

    family, _, media, scored = parts
    own = config(base, freeze_vision_tower=freeze_vision_tower)
    models = build_training_models(own, family, media)
    in_4_bits = {n for n, p in models.model.named_parameters() if isinstance(p, Params4bit)}
    assert len(in_4_bits) > 10
    assert not any("lm_head" in name for name in in_4_bits)
    groups = [s.group for s in scored]
    start = models.policy.logprobs(groups)
    whole = logprobs(parts, parts[1])
    assert 1e-4 < (start - whole).abs().mean() < 0.5  # rounded, and not another model
    before = {n: p.detach().clone() for n, p in models.model.named_parameters()}
    for _ in range(2):
        algorithm = build_algorithm(own.algorithm)
        batch = build_experience(scored, algorithm, Models(models.policy, models.reference))
        assert models.policy.update(batch)["grad_norm"] > 0
    changed = {n for n, p in models.model.named_parameters() if not torch.equal(p, before[n])}
    assert changed == {n for n in before if ".lora_" in n}
    assert isinstance(models.reference, AdapterReference)
    torch.testing.assert_close(models.reference.logprobs(groups), start)

    # What an engine and a checkpoint get is the policy, by the plain names, in float32.
    moved = models.policy.logprobs(groups)
    plain = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32)
    weights = dict(models.policy.weights())
    assert weights.keys() == plain.state_dict().keys()
    assert {w.dtype for w in weights.values()} == {torch.float32}
    plain.load_state_dict(weights)
    torch.testing.assert_close(logprobs(parts, plain), moved, atol=1e-4, rtol=0)
    models.policy.snapshot()(tmp_path / "out")
    saved = AutoModelForImageTextToText.from_pretrained(tmp_path / "out")
    assert not hasattr(saved.config, "quantization_config")
    torch.testing.assert_close(logprobs(parts, saved), moved, atol=1e-4, rtol=0)

    # A resumed run has the same policy.
    again = build_training_models(own, family, media)
    again.policy.load_snapshot(tmp_path / "out")
    assert torch.equal(again.policy.logprobs(groups), moved)


@needs_bitsandbytes
def test_the_weights_are_nf4_with_quantized_constants(base):
    model = load_trainable(ModelConfig(path=str(base), lora={"load_in_4bit": True}))
    weight = model.get_base_model().model.language_model.layers[0].mlp.up_proj.weight
    assert weight.quant_state.quant_type == "nf4"
    assert weight.quant_state.nested
    assert weight.quant_state.dtype == torch.bfloat16


@needs_bitsandbytes
def test_the_estimate_knows_which_weights_are_quantized(base):
    own = config(base)
    weights = quantized_weights(load_trainable(own.model)).values()
    assert read_shapes(own).quantized == sum(p.quant_state.shape.numel() for p in weights)


@needs_bitsandbytes
@pytest.mark.parametrize("nested", [False, True])
def test_stored_4_bit_weights_train_below_adapters(parts, base, tmp_path, nested):
    """A folder that transformers has quantized: the same weights, and only adapters learn."""
    family, _, media, scored = parts
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=nested)
    written = AutoModelForImageTextToText.from_pretrained(
        base, quantization_config=settings, dtype=torch.float32
    )
    written.save_pretrained(tmp_path / "bnb")
    family.processor.save_pretrained(tmp_path / "bnb")
    keep_layout(written)
    own = config(tmp_path / "bnb").changed({"model.lora": {"rank": 2}})
    models = build_training_models(own, family, media)
    groups = [s.group for s in scored]
    start = models.policy.logprobs(groups)
    torch.testing.assert_close(start, logprobs(parts, written), atol=1e-4, rtol=0)
    batch = build_experience(
        scored, build_algorithm(own.algorithm), Models(models.policy, models.reference)
    )
    assert models.policy.update(batch)["grad_norm"] > 0
    models.policy.snapshot()(tmp_path / "out")
    saved = AutoModelForImageTextToText.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(
        logprobs(parts, saved), models.policy.logprobs(groups), atol=1e-4, rtol=0
    )
    with pytest.raises(ValueError, match="quantized by bitsandbytes in 4 bits"):
        load_trainable(own.model.changed(lora=None))
