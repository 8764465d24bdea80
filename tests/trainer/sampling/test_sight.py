"""The check that the policy sees: pictures that do not reach the model stop a run."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from mmr1.config import SamplingConfig
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.hf import HfEngine
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.sampling.parity import check_parity
from mmr1.trainer.sampling.sight import LEAST_MOVE, BlindError
from mmr1.types import Message, TextPart
from mmr1.vision import features


def checked(parts, prompts):
    family, model, media, _ = parts
    packed = PackedModel(model, ModelInputs(family, media), Distribution(), budget=1000)
    engine = HfEngine(model, family, media)
    sampling = SamplingConfig(max_tokens=6)
    return check_parity(engine, packed, family, media, prompts, sampling, tolerance=1.0)


@pytest.fixture
def pictured(parts, digit_samples):
    return [parts[0].render_prompt(sample) for sample in digit_samples[:2]]


def test_sight_is_measured_in_nats(parts, pictured) -> None:
    assert checked(parts, pictured).sight > 100 * LEAST_MOVE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blind_policy_moves_nothing_at_all(parts, pictured, monkeypatch, dtype) -> None:
    """Engine and trainer agree, because both lack the picture: only the sight tells."""
    family, model, media, scored = parts
    encode = features.encode_media
    for module in ("mmr1.rollout.hf", "mmr1.trainer.forward.scores"):
        monkeypatch.setattr(f"{module}.encode_media", lambda *a, **k: encode(*a, **k) * 0)
    with pytest.raises(BlindError, match=f"sample '{pictured[0].sample.id}'.*vision tower"):
        checked((family, copy.deepcopy(model).to(dtype), media, scored), pictured)


def test_text_has_no_sight(parts, digit_samples) -> None:
    sample = replace(digit_samples[0], messages=(Message("user", (TextPart("Why?"),)),))
    assert checked(parts, [parts[0].render_prompt(sample)]).sight is None
