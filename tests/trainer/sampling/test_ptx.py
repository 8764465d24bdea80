"""The PTX term: its gradient is added to the policy's, and its data are where the step says."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from mmr1.config import AlgorithmConfig
from mmr1.config.file import load_config
from mmr1.data.quarantine import Quarantine
from mmr1.data.record import read_records
from mmr1.data.responses import demonstration
from mmr1.data.sampler import MediaCheck, SampleLoader, Sampler
from mmr1.rollout.distribution import Distribution
from mmr1.trainer.forward.scores import completion_states
from mmr1.trainer.forward.sequences import ModelInputs, group_input
from mmr1.trainer.models.nll import add_distillation_gradient, add_nll_gradient
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.reference import FrozenReference
from mmr1.trainer.sampling.ptx import Demonstrations
from mmr1.trainer.train import run_training
from tests.conftest import REWARDS
from tests.padded_forward import padded_scores
from tests.trainer.forward.kl_heads import moved
from tests.trainer.forward.kl_heads import naive as all_logits
from tests.trainer.gradients import assert_gradient
from tests.trainer.models.policies import experience, naive_gradient, policy
from tests.trainer.rl_runs import lines, rl


@pytest.fixture(scope="module")
def demonstrations(parts, digits):
    family, _, media, _ = parts
    samples = read_records(digits / "sft.jsonl")
    return tuple(demonstration(family, family.render_prompt(s), media) for s in samples[:3])


@pytest.mark.parametrize("budget", [1, 10_000])
def test_the_gradient_of_both_losses_is_added(parts, demonstrations, budget):
    family, _, media, _ = parts
    config = AlgorithmConfig(name="rloo")
    own, model = policy(parts, config, budget)
    batch = experience(parts, config, own)
    coefficients = replace(batch.coefficients, ptx=0.5)
    batch = replace(batch.with_demonstrations(demonstrations), coefficients=coefficients)
    caught: dict[str, torch.Tensor] = {}

    def step() -> dict[str, float]:
        caught.update({n: p.grad.clone() for n, p in model.named_parameters()})
        return {"grad_norm": 0.0, "lr": 0.0}

    own.optimizer.step = step
    stats = own.update(batch)

    advantages = [[r - (sum(row) - r) / 3 for r in row] for row in REWARDS]
    of_policy = naive_gradient(parts, "token-mean", advantages)
    _, naive = policy(parts, config)
    inputs = [group_input(family, media, group) for group in demonstrations]
    logprobs = padded_scores(naive, inputs, Distribution(forbidden=family.forbidden_ids)).logprobs
    tokens = sum(len(g.completions[0].token_ids) for g in demonstrations)
    loss = -logprobs.sum() / tokens
    (0.5 * loss).backward()
    assert stats["ptx_loss"] == pytest.approx(loss.item(), rel=1e-5)
    for name, parameter in naive.named_parameters():
        parameter.grad += of_policy[name]
    assert_gradient(caught, naive)


def test_the_demonstrations_likelihood_is_the_models_own(parts, demonstrations):
    """At the rollout's temperature of 0.7 the gradient would be larger by 1.43."""
    family, model, media, _ = parts
    packed = PackedModel(
        copy.deepcopy(model),
        ModelInputs(family, media),
        Distribution(0.7, forbidden=family.forbidden_ids),
        10_000,
    )
    loss = add_nll_gradient(packed, demonstrations)
    naive = copy.deepcopy(model)
    inputs = [group_input(family, media, group) for group in demonstrations]
    logprobs = padded_scores(naive, inputs, Distribution(forbidden=family.forbidden_ids)).logprobs
    expected = -logprobs.sum() / sum(len(g.completions[0].token_ids) for g in demonstrations)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert_gradient({n: p.grad for n, p in packed.model.named_parameters()}, naive)


def test_a_resumed_run_is_shown_what_would_have_come(parts, digit_samples):
    def walk() -> Demonstrations:
        check = MediaCheck(parts[2], Quarantine(0))
        loader = SampleLoader(Sampler(digit_samples[:7], 0), check)
        return Demonstrations(loader, 3, lambda sample: sample.id)

    whole = walk()
    steps = [whole.next() for _ in range(3)]
    assert len({name for step in steps[:2] for name in step}) == 6
    resumed = walk()
    resumed.load_state_dict(whole.state_dict())
    assert [resumed.next(), resumed.next()] == [whole.next(), whole.next()]


def test_a_whole_run(tiny_model, digits, tmp_path):
    ptx = {"data": str(digits / "sft.jsonl"), "batch_size": 4}
    config = rl(tiny_model, digits, tmp_path / "run").changed(
        {"trainer.validation": None, "algorithm": {"ptx": ptx}}
    )
    run_training(config)
    logged = [row["ptx_loss"] for row in lines(tmp_path / "run/metrics.jsonl")]
    assert logged[2] < logged[0]  # nothing else teaches an untrained model here
    other = {"algorithm.ptx.data": str(digits / "rl.jsonl")}
    with pytest.raises(ValueError, match=r"algorithm.ptx.data: sample .* has no assistant message"):
        run_training(config.changed({**other, "trainer.output_dir": str(tmp_path / "other")}))
    assert not (tmp_path / "other").exists()


def test_a_ptx_term_without_data_is_refused():
    with pytest.raises(ValueError, match=r"algorithm\.ptx\.data' is missing"):
        load_config(None, ["model.path=a", "algorithm.ptx.coef=0.1"])


@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_the_divergence_from_a_reference_at_the_demonstrations_tokens(parts, demonstrations, beta):
    """By the definition in GKD (arXiv 2306.13649), all logits at once."""
    family, model, media, _ = parts
    teacher = moved(model)
    packed = PackedModel(
        copy.deepcopy(model),
        ModelInputs(family, media),
        Distribution(0.7, forbidden=family.forbidden_ids),
        60,
        jsd_beta=beta,
    )
    reference = FrozenReference(packed, replace(packed, model=teacher))
    loss = add_distillation_gradient(packed, demonstrations, reference, 0.5)
    naive = copy.deepcopy(model)
    inputs = [group_input(family, media, group) for group in demonstrations]
    hidden, ref_hidden = (completion_states(m, inputs).hidden for m in (naive, teacher))
    heads = (naive.lm_head.weight, teacher.lm_head.weight)
    expected = all_logits(
        hidden, heads[0], ref_hidden, heads[1], forbidden=family.forbidden_ids, beta=beta
    ).mean()
    (0.5 * expected).backward()
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    assert_gradient({n: p.grad for n, p in packed.model.named_parameters()}, naive)
