"""Where the trainer waits for the device: once a step, after its last micro-batch."""

from __future__ import annotations

import copy
import traceback

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from transformers import AutoModelForImageTextToText

from mmr1.config import AlgorithmConfig, OptimizerConfig
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.types import Completion, Reward, RolloutGroup, ScoredGroup
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from tests.gpu_paths.stand_in import DEVICE


@pytest.fixture(scope="module")
def small(tiny_model, digit_samples):
    family = load_family(str(tiny_model))
    model = AutoModelForImageTextToText.from_pretrained(tiny_model, dtype=torch.bfloat16)
    scored = []
    for sample in digit_samples[:2]:
        rows = [np.arange(100, 100 + length) for length in (3, 5)]
        completions = tuple(
            Completion(row, np.full(len(row), -6, np.float32), "", False, 0) for row in rows
        )
        group = RolloutGroup(family.render_prompt(sample), completions)
        scored.append(ScoredGroup(group, (Reward(0.0), Reward(1.0))))
    return family, model, scored


def policy_of(small, config: AlgorithmConfig) -> LocalPolicy:
    family, model, _ = small
    own = copy.deepcopy(model).to_empty(device=DEVICE)
    inputs = ModelInputs(family, MediaCache(family.prepare_media))
    return LocalPolicy(
        PackedModel(
            own, inputs, Distribution(forbidden=inputs.family.forbidden_ids), budget=1
        ),  # a micro-batch for each completion
        build_algorithm(config),
        Optimizer(own, OptimizerConfig(), 10),
        passes=1,
    )


@pytest.mark.parametrize("config", [{}, {"entropy": {"coef": 0.01}}])
def test_an_update_reads_no_number_before_its_last_micro_batch(small, stand_in, config):
    settings = AlgorithmConfig(**config)
    policy, scored = policy_of(small, settings), small[2]
    experience = build_experience(scored, build_algorithm(settings), Models(policy))
    with pytest.raises(DataDependentOutputException) as stopped:
        policy.update(experience)
    assert "packed_model.py" in str([f.filename for f in traceback.extract_tb(stopped.tb)])
    layers, tower = 2, 2
    micro_batches = sum(len(s.group.completions) for s in scored)
    # Each completion continues in its prompt: a single block a layer.
    calls = micro_batches * (layers + tower)
    assert stand_in.kernels["_flash_attention_backward"] == calls
