"""Liger-Kernel's layers against transformers', their kernels run by Triton's interpreter."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.models.gemma3.modeling_gemma3 import Gemma3MLP, Gemma3RMSNorm
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_vl import modeling_qwen3_vl

from mmr1.config import ModelConfig
from mmr1.trainer.models.fused_layers import (
    ROTARY,
    fuse_layers,
    is_rms_norm,
    is_rotary,
    is_swiglu,
    uses_liger,
)
from tests.paths import REPOSITORY

installed = importlib.util.find_spec("liger_kernel") is not None


@pytest.mark.slow
@pytest.mark.skipif(not installed, reason="Liger-Kernel is not installed")
def test_fused_layers_compute_what_the_plain_ones_do():
    """A packed forward and backward of a tiny Qwen2.5-VL, its tower included.

    In float32: the interpreter of Triton 3.9 reads bfloat16 as other numbers.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu_paths.fused"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["layers"] == {"RMSNorm": 10, "SwiGLU": 4, "rotary embedding": 1}
    assert report["same_parameters"]
    assert report["logprobs"] < 1e-5
    assert report["gradients"] < 1e-5


def test_second_model_of_a_family_is_fused_without_a_warning(tiny_model, monkeypatch, caplog):
    home = modeling_qwen2_5_vl
    monkeypatch.setattr(home, ROTARY, getattr(home, ROTARY))  # put back afterwards
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(tiny_model)
        models = [AutoModelForImageTextToText.from_config(config) for _ in range(2)]
    first, second = map(fuse_layers, models)
    assert first == second
    assert not caplog.records


def test_layers_are_known_by_what_they_compute():
    """A norm with 1 + weight, or with a gate, has the attributes of a plain one."""
    assert is_rms_norm(modeling_qwen2_5_vl.Qwen2_5_VLRMSNorm)
    assert is_rms_norm(modeling_qwen3_vl.Qwen3VLTextRMSNorm)
    for other in (Gemma3RMSNorm, modeling_qwen3_5.Qwen3_5RMSNorm, nn.LayerNorm, nn.RMSNorm):
        assert not is_rms_norm(other)
    assert is_swiglu(modeling_qwen2_5_vl.Qwen2MLP)
    assert is_swiglu(modeling_qwen2_5_vl.Qwen2_5_VLMLP)
    assert is_swiglu(modeling_qwen3_vl.Qwen3VLTextMLP)
    assert is_swiglu(Gemma3MLP), "with SiLU in place of its GELU"
    assert not is_swiglu(modeling_qwen3_vl.Qwen3VLVisionMLP)
    assert is_rotary(modeling_qwen2_5_vl.apply_rotary_pos_emb)
    assert is_rotary(modeling_qwen3_vl.apply_rotary_pos_emb)
    assert not is_rotary(lambda q, k, cos, sin: (q, k))


def test_the_default_is_a_gpu_with_the_library(monkeypatch):
    def choice(gpu: bool, library: bool, asked: bool | None) -> bool:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if library else None)
        return uses_liger(ModelConfig(path="m", use_liger_kernel=asked))

    assert choice(gpu=True, library=True, asked=None)
    assert not choice(gpu=True, library=False, asked=None)
    assert not choice(gpu=False, library=True, asked=None)
    assert not choice(gpu=True, library=True, asked=False)
    with pytest.raises(ValueError, match=r"is not installed; install 'mmr1\[liger\]'"):
        choice(gpu=True, library=False, asked=True)
    with pytest.raises(ValueError, match="its kernels need a GPU"):
        choice(gpu=False, library=True, asked=True)
