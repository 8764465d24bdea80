"""PPO's critic: its values by an independent road, its gradient, what it learns."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from mmr1.config import AlgorithmConfig, ModelConfig, NewLoraConfig, OptimizerConfig
from mmr1.config.file import load_config
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.models.critic import LocalCritic, explained_variance, fit_line
from mmr1.trainer.models.loading import load_scalar_model
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.scalar_model import PackedScalarModel, scalar_snapshot
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.trainer.train import run_training
from mmr1.types import Reward, ScoredGroup
from tests.algorithms.scored_groups import Fixed, scored
from tests.trainer.rl_runs import lines, rl
from tests.trainer.scalar_models import new_scalar_model, padded_values


def critic(parts, lr: float = 1e-3, clip: float | None = 0.2, updates: int = 1, **options):
    scalar_model = new_scalar_model(parts, **options)
    settings = OptimizerConfig(
        lr=lr, max_grad_norm=1000000000.0, scheduler={"type": "constant", "warmup_steps": 0}
    )
    return LocalCritic(scalar_model, Optimizer(scalar_model.model, settings, 10), updates, clip)


@pytest.mark.parametrize("read", ["before", "at"])
@pytest.mark.parametrize("budget", [1, 10_000])
def test_values_are_the_head_on_the_state_of_each_token(parts, read, budget):
    scalar_model = new_scalar_model(parts, read, budget)
    actual = scalar_model.group_values([s.group for s in parts[3]])
    with torch.no_grad():
        expected = padded_values(scalar_model, parts, read)
    for row, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(row[: len(wanted)], wanted, atol=1e-5, rtol=0)
        assert not row[len(wanted) :].any()


def ppo(**advantage):
    return build_algorithm(AlgorithmConfig(name="ppo", advantage=advantage))


def experience(parts, own: LocalCritic, **settings):
    algorithm = ppo(**settings)
    return build_experience(parts[3], algorithm, Models(Fixed(-6.0), critic=own))


def test_the_gradient_is_that_of_the_clipped_squared_error(parts):
    own = critic(parts, budget=100)
    batch = experience(parts, own)
    # As if the critic had moved since the rollout, so that the clip has something to do.
    moved = batch.critic.values + 0.5 * torch.randn(batch.critic.values.shape)
    batch = replace(batch, critic=replace(batch.critic, values=moved))
    caught: dict[str, torch.Tensor] = {}
    model = own._scalar_model.model

    def step() -> dict[str, float]:
        caught.update({n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad})
        return {"grad_norm": 0.0, "lr": 0.0}

    own.optimizer.step = step
    own.optimizer.steps_taken = 1  # not the first, before which the head is moved
    stats = own.update(batch)

    other = new_scalar_model(parts)
    total, tokens = 0.0, 0
    for row, values in enumerate(padded_values(other, parts, "before")):
        for t, value in enumerate(values):
            old, wanted = float(batch.critic.values[row, t]), float(batch.critic.returns[row, t])
            near = old + (value - old).clamp(-0.2, 0.2)
            total = total + torch.maximum((value - wanted) ** 2, (near - wanted) ** 2) / 2
            tokens += 1
    (total / tokens).backward()
    assert stats["critic/loss"] == pytest.approx(float(total.detach()) / tokens, rel=1e-5)
    for name, parameter in other.model.named_parameters():
        if parameter.requires_grad:
            scale = max(1.0, parameter.grad.abs().max().item())
            assert (caught[name] - parameter.grad).abs().max() < 1e-5 * scale, name
    assert caught["head.weight"].abs().max() > 1e-3
    assert not any("lm_head" in name for name in caught)


def test_a_truncated_completion_goes_on_with_the_critics_value(parts):
    """The head on the state at its last token; a completion that ended has 0 after it."""
    own = critic(parts)
    first, *others = parts[3]
    cut = [replace(c, truncated=i == 1) for i, c in enumerate(first.group.completions)]
    groups = [replace(first, group=replace(first.group, completions=tuple(cut))), *others]
    with torch.no_grad():
        at = padded_values(own._scalar_model, parts, "at")
    ends = [float(row[-1]) for row in at]
    assert own.final_values([s.group for s in parts[3]]).tolist() == pytest.approx(ends, abs=1e-5)
    returns = []
    for bootstrap in (False, True):
        algorithm = ppo(gamma=0.9, lam=1.0, critic={"bootstrap_truncated": bootstrap})
        batch = build_experience(groups, algorithm, Models(Fixed(-6.0), critic=own))
        returns.append(batch.critic.returns)
    length = len(cut[1].token_ids)
    more = [0.9 ** (length - t) * ends[1] for t in range(length)]
    apart = returns[1] - returns[0]
    assert apart[1, :length].tolist() == pytest.approx(more, abs=1e-5)
    assert not apart[[0, *range(2, len(apart))]].any()


def test_ppos_advantages_by_hand():
    # Two completions of 2 and 1 tokens, rewards 1 and 0, values 0.5 and 0.25 throughout.
    algorithm = ppo(gamma=1.0, lam=0.5)

    class Half:
        def values(self, groups):
            return torch.tensor([[0.5, 0.5], [0.25, 0.25]])

    batch = build_experience(
        [scored([2, 1], [1.0, 0.0])], algorithm, Models(Fixed(-1.0), critic=Half())
    )
    # deltas: 0, 0.5 | -0.25; A = 0 + 0.5 * 0.5, 0.5 | -0.25; returns A + V.
    raw = torch.tensor([[0.25, 0.5], [-0.25, 0.0]])
    assert batch.critic.returns.tolist() == [[0.75, 1.0], [0.0, 0.0]]
    assert batch.critic.values.tolist() == [[0.5, 0.5], [0.25, 0.0]]
    mean = 0.5 / 3
    deviation = math.sqrt(sum((a - mean) ** 2 for a in (0.25, 0.5, -0.25)) / 3)
    expected = (raw - mean) / deviation * batch.tokens.mask
    torch.testing.assert_close(batch.tokens.advantages, expected, atol=1e-4, rtol=0)


def test_the_kl_penalty_is_a_reward_of_its_token():
    config = AlgorithmConfig(name="ppo", advantage={"gamma": 1.0, "lam": 1.0}, kl={"coef": 0.1})

    class Zero:
        def values(self, groups):
            return torch.zeros(1, 3)

    groups = [scored([3], [1.0])]
    batch = build_experience(
        groups, build_algorithm(config), Models(Fixed(-1.0), Fixed(-1.5), critic=Zero())
    )
    # k1 = 0.5 per token, 0.05 with its coefficient; what is still to come at each token.
    torch.testing.assert_close(batch.critic.returns, torch.tensor([[0.85, 0.90, 0.95]]))


def test_explained_variance():
    returns = torch.tensor([0.0, 1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == 1
    assert explained_variance(torch.full((4,), 7.0), returns) == 0
    assert explained_variance(returns + 5, returns) == 1  # a constant error explains all
    assert explained_variance(-returns, returns) == -3
    assert explained_variance(returns, torch.ones(4)) is None


@pytest.mark.parametrize(("lora", "lr"), [(None, 1e-3), (NewLoraConfig(rank=4), 3e-3)])
def test_the_critic_learns_returns_it_can_tell_apart(parts, lora, lr):
    """It comes near the best there is: only before the first token are all states the same."""
    group = parts[3][0].group
    rewards = [float(i % 2) for i in range(len(group.completions))]
    groups = [ScoredGroup(group, tuple(Reward(reward) for reward in rewards))]
    own = critic(parts, lr=lr, clip=None, lora=lora, std=0.0)
    algorithm = ppo(lam=1.0)
    history = []
    for _ in range(40):
        batch = build_experience(groups, algorithm, Models(Fixed(-6.0), critic=own))
        history.append(own.update(batch))
    first, last = history[0], history[-1]
    returns = batch.critic.returns[batch.tokens.mask]
    unexplained = len(rewards) * torch.tensor(rewards).var(correction=0) / len(returns)
    best = float(1 - unexplained / returns.var(correction=0))
    assert first["critic/explained_variance"] == pytest.approx(0, abs=1e-3)
    assert best - 0.05 < last["critic/explained_variance"] < best + 1e-3
    assert last["critic/loss"] < first["critic/loss"]


@pytest.mark.parametrize("std", [0.0, 3.0])  # a policy's head, and a reward model's
def test_a_critic_begins_at_the_mean_and_scale_of_the_first_returns(parts, std):
    own = critic(parts, lr=1e-12, clip=None, std=std)
    groups = [s.group for s in parts[3]]
    batch = experience(parts, own)
    mask = batch.tokens.mask
    own.update(batch)
    values, returns = own.values(groups)[mask], batch.critic.returns[mask]
    assert float(values.mean()) == pytest.approx(float(returns.mean()), abs=1e-4)
    # What is left cannot be made smaller by another scale.
    spread = values - values.mean()
    assert float((spread * (returns - values)).mean()) == pytest.approx(0, abs=1e-4)
    if std:
        assert 0 < float(spread.abs().max()) < float((batch.critic.values[mask] * 2).abs().max())
        assert explained_variance(batch.critic.values[mask], returns) < 0
        assert explained_variance(values, returns) >= 0
    higher = replace(batch.critic, returns=batch.critic.returns + 5)
    again = replace(batch, critic=higher)
    own.update(again)
    torch.testing.assert_close(own.values(groups)[mask], values)  # the first step's alone


def test_a_new_head_waits_for_a_batch_that_has_a_token(parts):
    own = critic(parts)
    batch = experience(parts, own)
    empty = replace(batch.tokens, mask=batch.tokens.mask & False)
    assert own.update(replace(batch, tokens=empty)) == {}
    assert own.steps_taken() == 0
    assert fit_line(torch.zeros(0), torch.zeros(0)) == (1.0, 0.0)
    assert math.isfinite(own.update(batch)["critic/loss"])


def test_several_updates_share_one_pass_for_the_old_values(parts, monkeypatch):
    own = critic(parts, updates=3)
    asked = []
    values = LocalCritic.values
    monkeypatch.setattr(LocalCritic, "values", lambda s, g: asked.append(1) or values(s, g))
    batch = experience(parts, own)
    stats = own.update(batch)
    assert len(asked) == 1
    assert stats["critic/loss"] > 0


def test_a_saved_model_is_loaded_with_its_head(parts, tmp_path):
    scalar_model = new_scalar_model(parts)
    groups = [s.group for s in parts[3]]
    expected = scalar_model.group_values(groups)
    optimizer = Optimizer(scalar_model.model, OptimizerConfig(), 1)
    scalar_snapshot(scalar_model.model, parts[0].processor, optimizer)(tmp_path)
    loaded = load_scalar_model(ModelConfig(path=str(tmp_path), dtype="float32"), "a.path")
    again = PackedScalarModel(
        loaded, replace(scalar_model.packed_model, model=loaded.backbone), "before"
    )
    torch.testing.assert_close(again.group_values(groups), expected, atol=1e-6, rtol=0)


def test_a_policy_gives_a_critic_that_claims_nothing(tiny_model):
    model = load_scalar_model(ModelConfig(path=str(tiny_model), dtype="float32"), "a.path")
    assert not model.head.weight.any()
    with pytest.raises(ValueError, match=r"algorithm.advantage.critic.path '/no/where/here'"):
        load_scalar_model(ModelConfig(path="/no/where/here"), "algorithm.advantage.critic.path")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["algorithm.name=ppo", "algorithm.advantage.critic=null"], "algorithm.advantage.critic"),
        (["algorithm.advantage.critic.lr=1"], "type 'grpo' has no 'critic'"),
        (["algorithm.name=ppo", "algorithm.advantage.critic.warmup_steps=100"], "never learn"),
        (["algorithm.name=ppo", "algorithm.advantage.lam=1.5"], "less than or equal to 1"),
    ],
)
def test_critics_that_make_no_sense_are_refused(overrides, said):
    with pytest.raises(ValueError, match=said):
        load_config(None, ["model.path=a", *overrides])


def test_a_whole_run_with_warm_up(tiny_model, digits, tmp_path):
    config = rl(tiny_model, digits, tmp_path / "run")
    critic = {"warmup_steps": 1, "lr": 1e-3, "ppo_epochs": 2}
    changed = {
        "algorithm": AlgorithmConfig(name="ppo", advantage={"critic": critic}),
        "trainer.validation": None,
        "optimizer": OptimizerConfig(lr=0.0001, scheduler={"type": "linear", "warmup_steps": 0}),
    }
    checkpoint = run_training(config.changed(changed))
    first, second, third = lines(tmp_path / "run/metrics.jsonl")
    assert "loss" not in first
    assert "critic/loss" in first
    assert second["rollout/logprob_diff_mean"] < 1e-5
    assert {"loss", "critic/loss", "critic/grad_norm", "critic/lr"} <= third.keys()
    versions = {
        c["policy_version"]
        for row in lines(tmp_path / "run/rollouts/step_000003.jsonl")
        for c in row["completions"]
    }
    state = json.loads((checkpoint / "training/state.json").read_text())
    assert state["critic"]["optimizer"]["steps_taken"] == 2 * 3
    assert versions == {1}  # one update of the policy, in the second step
    # Its schedule is over the two steps in which it learns, and ends with them.
    assert [second["lr"], third["lr"]] == pytest.approx([1e-4, 0.5e-4])
