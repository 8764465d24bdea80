"""What each phase of a step should take, against the count on the stand-in device."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForImageTextToText

from mmr1.config import Config
from mmr1.estimate.load import Load
from mmr1.estimate.shapes import read_shapes
from mmr1.estimate.step_time import Machine, Step, phases
from mmr1.trainer.forward.padded import padded_scores
from mmr1.vision.families.tiny import new_model
from tests.estimate.models import config_for
from tests.trainer.tiny_groups import group, image

LOAD = Load(1124, 1024, 1024)
PEAK = Machine(bandwidth_reached=1.0)
RUN = {
    "data": {"train_batch_size": 1},
    "rollout": {"n": 8, "max_response_length": 1024},
}


def seconds(path, fused=False, **sections) -> dict[str, float]:
    config = config_for(path, **{**RUN, **sections})
    return {phase.name: phase.seconds for phase in phases(config, LOAD, fused, PEAK)}


def test_an_update_of_3b_is_as_it_was_counted(three_b):
    """``scripts/bench/counted_step.py``: 188 ms element-wise, 63 fused, 122 GB in the head."""
    plain, fused = seconds(three_b), seconds(three_b, fused=True)
    assert plain["update: element-wise"] == pytest.approx(0.188, rel=0.15)
    assert fused["update: element-wise"] == pytest.approx(0.063, rel=0.15)
    assert plain["update: log-prob head"] == pytest.approx(122e9 / 3.35e12, rel=0.05)
    # 201.5 TFLOP at seven tenths of the peak, with the attention and the head.
    assert plain["update: products"] == pytest.approx(201.5 / (0.7 * 989), rel=0.1)


def test_what_changes_a_phase(three_b):
    one = seconds(three_b)
    checkpointed = seconds(three_b, model={"gradient_checkpointing": True})
    assert checkpointed["update: products"] == pytest.approx(4 / 3 * one["update: products"])
    half = seconds(three_b, model={"gradient_checkpointing": 18})  # of 36 layers
    assert half["update: products"] == pytest.approx(7 / 6 * one["update: products"])
    offloaded = seconds(three_b, optimizer={"offload": True})
    assert offloaded["AdamW"] > 10 * one["AdamW"]
    # On one GPU the weights do not leave it; an engine on two has them by main memory.
    wide = seconds(three_b, rollout={**RUN["rollout"], "engine": {"tensor_parallel_size": 2}})
    assert wide["weights to the engine"] > 100 * one["weights to the engine"]
    many = config_for(three_b, **{**RUN, "data": {"train_batch_size": 64}})
    (decoding,) = (p for p in phases(many, Load(100, 0, 100), True) if p.name == "decoding")
    assert decoding.seconds == pytest.approx(100 * 64 * 8 * 20e-6)
    assert "host" in decoding.bound
    apart = seconds(three_b, resources={"ranks": 4, "engines": 4}, data={"train_batch_size": 8})
    assert apart["update: products"] == pytest.approx(2 * one["update: products"])


@pytest.mark.parametrize(
    ("algorithm", "scorers"),
    [
        ({"name": "grpo"}, []),
        ({"name": "grpo", "kl": {"coef": 0.01}}, ["reference"]),
        ({"name": "grpo", "kl": {"coef": 0.01}, "ppo_epochs": 4}, ["policy", "reference"]),
        ({"name": "ppo", "kl": None, "ppo_epochs": 2}, ["critic", "policy"]),
    ],
    ids=str,
)
def test_step_has_a_pass_for_each_model_that_scores(three_b, algorithm, scorers):
    plain, own = seconds(three_b), seconds(three_b, algorithm=algorithm)
    assert [n.removeprefix("log-probs: ") for n in own if n.startswith("log-probs")] == scorers
    for scorer in scorers:
        forward = plain["update: products"] / 3
        assert own[f"log-probs: {scorer}"] == pytest.approx(forward)
    updates = algorithm.get("ppo_epochs", 1) * (2 if "critic" in scorers else 1)
    assert own["update: products"] == pytest.approx(updates * plain["update: products"])


def test_flops_of_a_group_are_those_that_torch_counts(tmp_path):
    """A prompt for each of its completions: then torch's padded forward does the same work."""
    new_model(tmp_path / "20m", "20m")
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "20m", dtype=torch.float32)
    config = Config(model={"path": str(tmp_path / "20m"), "dtype": "float32"})
    shapes = read_shapes(config)
    one = group([image(280, 280, 0)], 20, [200], 0)
    load = Load(len(one.prompt_ids), sum(m.tokens for m in one.media), 200)
    with FlopCounterMode(display=False) as counter:
        padded_scores(model, [one]).logprobs.sum().backward()
    counted = counter.get_total_flops()
    step = Step(shapes.model, shapes.weights, shapes.vocabulary, 1, 1, load)
    assert step.group_flops == pytest.approx(counted, rel=0.15)
