"""Experts: their weights in files as the hub and vLLM have them, and the router's precision."""

from __future__ import annotations

import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

from mmr1.trainer.models.hub_files import save_pretrained
from mmr1.vision.families.loading import architecture_of
from tests.vision.families.tiny_family import FAMILIES

MOE = FAMILIES["qwen3_vl_moe"]
LAYER = "model.language_model.layers.0.mlp.experts."


def test_files_have_the_layout_of_the_hub(tmp_path):
    """``[experts, in, out]``, as Qwen3-VL-30B-A3B has it; transformers reads that and turns it."""
    model = MOE.model()
    save_pretrained(model, tmp_path / "saved", model.state_dict(), {})
    for folder in (MOE.folder, tmp_path / "saved"):
        weights = load_file(folder / "model.safetensors")
        assert weights[f"{LAYER}gate_up_proj"].shape == (4, 128, 2 * 96)
        assert weights[f"{LAYER}down_proj"].shape == (4, 96, 128)
        assert weights.keys() == model.state_dict().keys()
    again = AutoModelForImageTextToText.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    for name, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name
        in_file = architecture_of(model).in_files(name, weight)
        assert torch.equal(weights[name], in_file), name


def test_the_auxiliary_loss_is_off_and_routing_is_decided_in_float32():
    model = MOE.model().to(torch.bfloat16)
    assert not model.config.text_config.output_router_logits
    router = model.model.language_model.layers[0].mlp.gate
    states = torch.randn(50, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
    logits, _, chosen = router(states)
    assert torch.equal(chosen, logits.float().softmax(-1).topk(2).indices)
