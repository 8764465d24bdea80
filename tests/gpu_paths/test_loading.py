"""What is asked of a model when it is loaded, where its weights are on a device already."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from transformers import LlamaConfig, LlamaForCausalLM

from mmr1.trainer.models.loading import check_head
from tests.gpu_paths.stand_in import DEVICE


def test_the_head_is_checked_on_the_device_of_the_weights(stand_in):
    """The stand-in holds no numbers, so the check ends where it compares the logits."""
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=300, num_hidden_layers=1, **shape)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    with pytest.raises(DataDependentOutputException, match="allclose"):
        check_head(model.to_empty(device=DEVICE), "model.path 'x'")
