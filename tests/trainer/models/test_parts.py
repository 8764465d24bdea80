"""Parts of the model: frozen, and with learning rates of their own."""

from __future__ import annotations

import pytest
import torch

from mmr1.config import AlgorithmConfig, ModelConfig, OptimizerConfig
from mmr1.config.file import load_config
from mmr1.data.responses import group_of_responses
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.loading import load_trainable
from mmr1.trainer.models.nll import add_nll_gradient
from mmr1.trainer.models.optimizer import Optimizer, schedule_factor
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.parts import parameters_of
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.types import Message, Reward, Sample, ScoredGroup, TextPart

PARTS = ("language_model", "vision_tower", "multi_modal_projector")


def model_of(tiny_model, frozen=(), **keys):
    config = ModelConfig(path=str(tiny_model), dtype="float32", **keys)
    return load_trainable(config, lr_of_parts=dict.fromkeys(frozen, 0.0))


def test_the_parts_are_the_whole_model(tiny_model):
    model = model_of(tiny_model)
    found = [parameters_of(model, part, "key") for part in PARTS]
    assert sum(map(len, found)) == len(set().union(*found)) == len(list(model.parameters()))
    language, tower, projector = found
    assert "lm_head.weight" in language
    assert all("visual.merger" in name for name in projector)
    assert all("visual" in name for name in tower | projector)


@pytest.mark.parametrize(
    ("freeze", "trained"),
    [
        (("language_model",), {"vision_tower", "multi_modal_projector"}),
        (("multi_modal_projector", r"lm_head|language_model\."), {"vision_tower"}),
        (("vision_tower",), {"language_model", "multi_modal_projector"}),
        (("multi_modal_projector",), {"language_model", "vision_tower"}),
    ],
)
def test_frozen_parts_are_not_trained(tiny_model, freeze, trained):
    model = model_of(tiny_model, freeze)
    wanted = {name for part in trained for name in parameters_of(model, part, "key")}
    assert {name for name, p in model.named_parameters() if p.requires_grad} == wanted
    assert len(Optimizer(model, OptimizerConfig(), 1).tensors()) == 4 * len(wanted)


def test_the_last_part_that_fits_counts(tiny_model):
    config = ModelConfig(path=str(tiny_model), dtype="float32", freeze_vision_tower=True)
    rates = {"language_model": 0.0, r"lm_head": 1e-3, "visual": 1e-3}
    model = load_trainable(config, lr_of_parts=rates)
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {"lm_head.weight"}


def test_a_text_teaches_the_projector_nothing(tiny_model, parts):
    family, _, media, _ = parts
    model = model_of(tiny_model, ("language_model",))
    sample = Sample("text", (Message("user", (TextPart("1 + 1"),)),))
    answered = group_of_responses(family, family.render_prompt(sample), ("2", "3"))
    packed = PackedModel(
        model, ModelInputs(family, media), Distribution(forbidden=family.forbidden_ids), 10_000
    )
    assert add_nll_gradient(packed, [answered]) > 0
    config = AlgorithmConfig()
    algorithm = build_algorithm(config)
    policy = LocalPolicy(packed, algorithm, Optimizer(model, OptimizerConfig(), 1), 1)
    scored = ScoredGroup(answered, (Reward(1.0), Reward(0.0)))
    stats = policy.update(build_experience([scored], algorithm, Models(policy)))
    assert stats["grad_norm"] == 0
    assert stats["entropy"] > 0


def test_every_part_steps_by_its_own_rate(tiny_model):
    """AdamW's first step is of length lr, whatever the gradient."""
    model = model_of(tiny_model)
    rates = {"vision_tower": 1e-4, "multi_modal_projector": 2e-3, r"lm_head": 0.0}
    config = OptimizerConfig(
        lr=0.001,
        lr_of_parts=rates,
        max_grad_norm=1000000000.0,
        scheduler={"type": "constant", "warmup_steps": 2},
    )
    optimizer = Optimizer(model, config, 10)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # the first of two of the warm-up: half of each rate
    part_of = {name: part for part in PARTS for name in parameters_of(model, part, "key")}
    for name, parameter in model.named_parameters():
        rate = 0.0 if name == "lm_head.weight" else rates.get(part_of[name], 1e-3)
        moved = before[name] - parameter.detach()
        torch.testing.assert_close(moved, torch.full_like(moved, rate / 2), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_ends_at_the_lowest_rate(schedule):
    """verl's cosine: lr * (r + (1 - r) * (1 + cos(pi t)) / 2) with r = min_lr / lr."""
    config = OptimizerConfig(
        lr=0.001, scheduler={"type": schedule, "warmup_steps": 0, "min_lr": 0.0001}
    )
    rates = [1e-3 * schedule_factor(step, 8, config) for step in range(9)]
    assert rates[0] == 1e-3
    assert rates[4] == pytest.approx(5.5e-4)  # half way between both, on either curve
    assert rates[8] == pytest.approx(1e-4)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_schedule_can_end_after_steps_of_its_own(schedule):
    """A run of 4 steps of a schedule over 8, which another run may continue with."""
    keys = {"type": schedule, "warmup_steps": 2}
    own = OptimizerConfig(scheduler={**keys, "steps": 8})
    whole = OptimizerConfig(scheduler=keys)
    rates = [[schedule_factor(s, n, c) for s in range(9)] for n, c in ((4, own), (8, whole))]
    assert rates[0] == rates[1]
    assert rates[0][8] == pytest.approx(0.0, abs=1e-9)


def test_a_warm_up_can_be_a_share_of_the_steps():
    config = OptimizerConfig(scheduler={"type": "constant", "warmup_steps": 0.25})
    assert [schedule_factor(s, 10, config) for s in range(4)] == [0.5, 1.0, 1.0, 1.0]
    longer = OptimizerConfig(scheduler={"type": "cosine", "warmup_steps": 0.25, "steps": 16})
    assert [schedule_factor(s, 10, longer) for s in range(4)] == [0.25, 0.5, 0.75, 1.0]
    down = OptimizerConfig(scheduler={"type": "constant", "warmup_steps": 0.29})
    assert schedule_factor(0, 10, down) == 0.5  # two steps of 2.9
    none = OptimizerConfig(scheduler={"type": "constant", "warmup_steps": 0.0})
    assert schedule_factor(0, 10, none) == 1.0


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["optimizer.lr_of_parts.vision_tower=0.0", "model.freeze_vision_tower=true"],
            "the first freezes the tower and its projector",
        ),
        (["optimizer.lr_of_parts.(=0.0"], "is not a regular expression"),
        (
            ["model.lora={}", "optimizer.lr_of_parts.lm_head=0.0"],
            "adapters are trained and no other",
        ),
        (["optimizer.lr_of_parts={(: 1e-3}"], "is not a regular expression"),
        (
            [
                "optimizer.lr=1e-4",
                "optimizer.scheduler.type=cosine",
                "optimizer.scheduler.min_lr=1e-3",
            ],
            "no schedule rises",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(overrides, said):
    with pytest.raises(ValueError, match=said):
        load_config(None, ["model.path=a", *overrides])


def test_what_the_model_lacks_is_refused(tiny_model):
    with pytest.raises(ValueError, match=r"lr_of_parts: 'lmhead' is not part .* names such as"):
        model_of(tiny_model, ("lmhead",))
    model = model_of(tiny_model)
    with pytest.raises(ValueError, match=r"optimizer\.lr_of_parts: 'merge_r' is not part"):
        Optimizer(model, OptimizerConfig(lr_of_parts={"merge_r": 1e-3}), 1)
    with pytest.raises(ValueError, match="nothing is left to train"):
        model_of(tiny_model, ("language_model",), freeze_vision_tower=True)


@pytest.mark.parametrize("sharing", ["packed", "padded"])
def test_a_family_that_always_shares_prompts_is_not_asked_to(tiny_model, sharing):
    with pytest.raises(ValueError, match=f"model.sharing={sharing}: .* leave model.sharing out"):
        model_of(tiny_model, sharing=sharing)
