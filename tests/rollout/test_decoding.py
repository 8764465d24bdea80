"""Prompts that decode together, through models without a family: against transformers' generate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GptOssConfig,
    MistralConfig,
    Qwen3Config,
)

from mmr1.config import NewLoraConfig, SamplingConfig
from mmr1.rollout.decoding import decodes_together
from mmr1.rollout.hf import HfEngine
from mmr1.trainer.forward.any_model.forward import Verdict, admit
from mmr1.trainer.models.lora import add_adapters
from mmr1.vision.prepare import MediaCache
from tests.asking import asks, completed
from tests.vision.families.general_family import GENERAL, General

ONE_BY_ONE = ("qwen3_5", "gemma3")
"""Linear attention, and a window of 16 tokens."""


def sampled(general: General, model, sampling: SamplingConfig):
    """Completions of all kinds of prompts, and the forwards of the decoder that they took."""
    engine = HfEngine(model, general.family, MediaCache(general.family.prepare_media))
    requests = [asks(g.prompt, 3, 9 * i) for i, g in enumerate(general.groups())]
    calls = []
    hook = model.get_decoder().register_forward_pre_hook(lambda *_: calls.append(None))
    try:
        groups = completed(engine, requests, sampling)
    finally:
        hook.remove()
    return [c for g in groups for c in g.completions], len(calls)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("name", GENERAL)
def test_they_are_those_of_generate(name, temperature):
    """Also rows and whole groups that end before others."""
    general = GENERAL[name]
    sampling = SamplingConfig(max_tokens=40, temperature=temperature)
    wanted, before = sampled(general, general.model(), sampling)
    got, after = sampled(general, general.model(packed=True), sampling)
    for one, other in zip(got, wanted, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.truncated == other.truncated
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
    steps, groups = max(len(c.token_ids) for c in got), len(general.groups())
    if name in ONE_BY_ONE:
        assert after - before <= 2  # the two tokens that it is tried on
    else:  # each prompt once, and one forward for a token of all rows; two for the trial
        assert after == groups + steps - 1 + 2
        assert before > groups * (steps - 1) / 2


SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("config", "longest", "together"),
    [
        (Qwen3Config(**SIZES), 4000, True),
        (Qwen3Config(**SIZES, rope_parameters=DYNAMIC), 10, False),
        (MistralConfig(**SIZES, sliding_window=300), 300, True),
        (MistralConfig(**SIZES, sliding_window=300), 301, False),
        (Gemma2Config(**SIZES, attn_logit_softcapping=30.0), 10, False),
        (GptOssConfig(**SIZES, num_local_experts=4, layer_types=["full_attention"] * 2), 10, False),
    ],
    ids=[
        "plain",
        "scaled by length",
        "within its window",
        "beyond it",
        "capped",
        "sinks",
    ],
)
def test_what_decodes_together(config, longest, together):
    model = AutoModelForCausalLM.from_config(config).eval()
    assert not decodes_together(model, longest), "no probe has admitted it"
    admit(model, Verdict("packed"))
    own = model.config._attn_implementation
    assert decodes_together(model, longest) == together
    assert model.config._attn_implementation == own


def test_adapters_decode_together():
    general = GENERAL["llava"]
    lora = NewLoraConfig(rank=2)
    models = []
    for packed in (False, True):
        torch.manual_seed(0)
        model = add_adapters(general.model(packed), lora, freeze_vision_tower=False).eval()
        draw = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    weight += 0.02 * torch.randn(weight.shape, generator=draw)
        models.append(model)
    sampling = SamplingConfig(max_tokens=12)
    (wanted, _), (got, calls) = (sampled(general, m, sampling) for m in models)
    assert calls < 20
    for one, other in zip(got, wanted, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
