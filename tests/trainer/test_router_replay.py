"""Runs and updates of a mixture of experts: what is logged, the gradient, and what is refused."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from mmr1.config import AlgorithmConfig, Config, OptimizerConfig, RolloutConfig, SamplingConfig
from mmr1.config.checks import problems_of
from mmr1.rollout.distribution import Distribution
from mmr1.rollout.hf import HfEngine
from mmr1.routers import watch_routers
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.forward.routing import RouterUse
from mmr1.trainer.forward.scores import completion_scores
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.optimizer import Optimizer
from mmr1.trainer.models.packed_model import PackedModel
from mmr1.trainer.models.policy import LocalPolicy
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.trainer.train import run_training
from mmr1.types import Message, Reward, RolloutGroup, Sample, ScoredGroup, TextPart
from mmr1.vision.prepare import MediaCache
from tests.asking import asks, completed
from tests.jsonl import read_jsonl
from tests.trainer.family_runs import config_of
from tests.trainer.resumption import LENGTH_REWARD
from tests.vision.families.general_family import IMAGE
from tests.vision.families.tiny_family import FAMILIES

MOE = FAMILIES["qwen3_vl_moe"]


@pytest.mark.slow
def test_a_run_logs_the_gap_and_the_load(digits, tmp_path):
    """Engine and trainer are one model here, so their choices are the same before an update."""
    (tmp_path / "length.py").write_text(LENGTH_REWARD)
    (tmp_path / "accident").write_text("")
    length = {"type": f"{tmp_path}/length.py:reward", "sandbox": None}
    config = config_of(
        MOE.folder,
        digits,
        tmp_path / "rl",
        "rl.jsonl",
        rewards={"length": length},
        algorithm={"router_replay": "R3", "router_aux_loss_coef": 0.01, "kl": {"coef": 0.01}},
        model={"lora": {"rank": 2}},
    )
    run_training(config)
    rows = read_jsonl(tmp_path / "rl/metrics.jsonl")
    assert len(rows) == 2
    for row in rows:
        assert row["rollout/logprob_diff_mean"] < 1e-5
        assert (
            row["rollout/frac_router_mismatch"]
            == row["rollout/frac_router_mismatch_per_layer"]
            == 0
        )
        assert 1 < row["router_aux_loss"] < 4  # k where the load is even, up to the experts


def scored_groups(model, seed: int = 1) -> list[ScoredGroup]:
    media = MediaCache(MOE.family.prepare_media)
    texts = ((IMAGE, TextPart("What?")), (TextPart("Which of these digits is it?"),))
    prompts = [MOE.family.render_prompt(Sample("s", (Message("user", t),))) for t in texts]
    engine = HfEngine(model, MOE.family, media, returns_experts=True)
    requests = [asks(prompt, 3, seed + n) for n, prompt in enumerate(prompts)]
    groups = completed(engine, requests, SamplingConfig(max_tokens=9))
    rewards = tuple(map(Reward, (0.0, 1.0, 3.0)))  # none has an advantage of 0
    return [ScoredGroup(group, rewards) for group in groups]


def policy_of(model, use: RouterUse | None, coefficient: float, budget: int = 10_000):
    inputs = ModelInputs(MOE.family, MediaCache(MOE.family.prepare_media))
    packed_model = PackedModel(
        model, inputs, Distribution(forbidden=inputs.family.forbidden_ids), budget, routers=use
    )
    optimizer = Optimizer(model, OptimizerConfig(lr=1e-3, scheduler={"warmup_steps": 0}), 10)
    algorithm = build_algorithm(AlgorithmConfig())
    return LocalPolicy(packed_model, algorithm, optimizer, 1, router_loss_coefficient=coefficient)


def gradients_of(policy: LocalPolicy, model, scored) -> tuple[dict[str, torch.Tensor], dict]:
    caught: dict[str, torch.Tensor] = {}

    def step() -> dict[str, float]:
        caught.update({n: p.grad.clone() for n, p in model.named_parameters()})
        model.zero_grad()
        return {"grad_norm": 0.0, "lr": 0.0}

    policy.optimizer.step = step
    algorithm = build_algorithm(AlgorithmConfig())
    stats = policy.update(build_experience(scored, algorithm, Models(policy, None)))
    return caught, stats


@pytest.mark.parametrize("budget", [10_000, 60])
def test_the_load_is_weighted_by_the_tokens_of_micro_batches(budget):
    """The update's gradient with the loss, less that without: of one micro-batch, and of several"""
    model = MOE.model()
    scored = scored_groups(model)
    watch_routers(model, "test")
    use = RouterUse(balances=True)
    policy = policy_of(model, use, 0.5, budget)
    with_loss, stats = gradients_of(policy, model, scored)
    without, _ = gradients_of(policy_of(model, None, 0.0, budget), model, scored)
    groups = [s.group for s in scored]
    batches = policy._packed_model.batches(groups)
    assert (len(batches) > 1) == (budget == 60)
    loss, total = torch.zeros(()), 0
    for batch in batches:
        tokens = sum(
            len(g.prompt_ids) + sum(len(row) - 1 for row in g.completions) for g in batch.groups
        )
        total += tokens
        forbidden = MOE.family.forbidden_ids
        scores = completion_scores(
            model, batch.groups, Distribution(forbidden=forbidden), routers=use
        )
        loss = loss + tokens * scores.router_loss
    (0.5 * loss / total).backward()
    assert stats["router_aux_loss"] == pytest.approx(float(loss.detach() / total), abs=1e-5)
    for name, parameter in model.named_parameters():
        if "gate.weight" in name:
            added = with_loss[name] - without[name]
            torch.testing.assert_close(added, parameter.grad, rtol=1e-3, atol=1e-6)
            assert parameter.grad.abs().max() > 1e-4


def test_replay_reaches_old_log_probs_and_update():
    """Completions whose record says other experts: with R3 both forwards compute with those."""
    model = MOE.model()
    scored = scored_groups(model)
    turned = [replace(s, group=turn(s.group)) for s in scored]
    watch_routers(model, "test")
    replays = policy_of(model, RouterUse(compares=True, replays=True), 0.0)
    compares = policy_of(model, RouterUse(compares=True), 0.0)
    groups = [s.group for s in turned]
    own, replayed = compares.logprobs(groups), replays.logprobs(groups)
    assert (own - replayed).abs().max() > 1e-3
    _, stats = gradients_of(replays, model, turned)
    assert stats["rollout/frac_router_mismatch"] == 1
    assert stats["rollout/logprob_diff_mean"] > 1e-3
    _, stats = gradients_of(compares, model, turned)
    assert stats["rollout/frac_router_mismatch"] == 1
    assert stats["rollout/logprob_diff_mean"] < 1e-5
    bare = [replace(s, group=unknown(s.group)) for s in scored]
    with pytest.raises(ValueError, match="needs an engine that returns the experts"):
        gradients_of(compares, model, bare)


def turn(group: RolloutGroup) -> RolloutGroup:
    """The group, as if the engine had taken the next of four experts each time."""
    rows = [
        replace(c, routed_experts=tuple((e + 1) % 4 for e in c.routed_experts))
        for c in group.completions
    ]
    return replace(group, completions=tuple(rows))


def unknown(group: RolloutGroup) -> RolloutGroup:
    rows = [replace(c, routed_experts=None) for c in group.completions]
    return replace(group, completions=tuple(rows))


def test_the_choice_survives_a_copy_of_the_model():
    """A watched model can be copied; each copy has routers of its own."""
    model = MOE.model()
    watched = watch_routers(model, "test")
    other = copy.deepcopy(model)
    assert watch_routers(other, "test") is not watched
    completion_scores(other, [MOE.group([], 4, [3], 1)], routers=RouterUse(balances=True))
    assert watched.running is None


@pytest.mark.vllm
def test_vllm_on_a_cpu_returns_no_experts():
    pytest.importorskip("vllm")
    from mmr1.rollout.vllm import VllmEngine

    with pytest.raises(ValueError, match="second model runner alone"):
        VllmEngine(
            str(MOE.folder), RolloutConfig(), MOE.family, None, "float32", 0, returns_experts=True
        )


@pytest.mark.vllm
def test_what_vllm_says_of_experts_is_read():
    """vLLM's own output, as its second model runner fills it: 3 tokens of prompt, 2 of 4 layers."""
    pytest.importorskip("vllm")
    import numpy as np
    from vllm.outputs import CompletionOutput, RequestOutput

    from mmr1.rollout.vllm import experts_of

    def output(index: int, tokens: int) -> CompletionOutput:
        routed = np.arange((3 + tokens) * 8, dtype=np.uint16).reshape(3 + tokens, 4, 2)
        return CompletionOutput(index, "", [7] * tokens, None, None, routed_experts=routed)

    whole = RequestOutput("0", None, [1, 2, 3], None, [output(0, 2), output(1, 1)], True)
    (prompt, own), (other, alone) = experts_of(whole)
    assert other is prompt
    assert prompt.shape == (3, 4, 2)
    assert prompt.dtype == np.int16
    assert own[:, 0, 0].tolist() == [24]  # the last token was fed to nothing
    assert alone.shape == (0, 4, 2)


@pytest.mark.parametrize(
    "keys",
    [
        {"environment": {"tools": ["calculator"]}, "algorithm": {"router_replay": "compare"}},
        {"algorithm": {"router_replay": "R3", "filter_groups": {"type": "replay"}}},
        {
            "algorithm": {"router_replay": "R3"},
            "rollout": {"queue": {"at_new_weights": "continue"}},
        },
        {
            "algorithm": {"router_aux_loss_coef": 0.01},
            "resources": {"ranks": 2, "context_parallel_size": 2},
        },
    ],
)
def test_combinations_that_are_refused(keys):
    config = Config.model_validate({"data": {"train": "x"}, "model": {"path": "m"}, **keys})
    assert any("router" in problem for problem in problems_of(config))
