"""Models whose memory is estimated."""

from __future__ import annotations

import json

import pytest
from transformers import AutoConfig

from mmr1.vision.families.tiny import new_model
from tests.estimate.models import THREE_B


@pytest.fixture(scope="module")
def twenty_m(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "20m"
    new_model(path, "20m")
    return path


@pytest.fixture(scope="module")
def three_b(tmp_path_factory, twenty_m):
    """Only a configuration: the estimate needs no weights."""
    path = tmp_path_factory.mktemp("models") / "3b"
    path.mkdir()
    content = AutoConfig.from_pretrained(twenty_m).to_dict()
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    text = {**content["text_config"], **THREE_B, "rope_parameters": rope, "head_dim": 128}
    text["layer_types"] = ["full_attention"] * 36
    vision = {**content["vision_config"], "hidden_size": 1280, "intermediate_size": 3420}
    vision |= {"depth": 32, "num_heads": 16, "out_hidden_size": 2048}
    content |= {"text_config": text, "vision_config": vision, "tie_word_embeddings": True}
    (path / "config.json").write_text(json.dumps(content, default=str))
    return path
