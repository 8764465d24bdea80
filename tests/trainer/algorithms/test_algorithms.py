"""Every algorithm by its name: what is refused, what reaches the update, one of a user's own."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from mmr1.config import AlgorithmConfig, Config, CriticConfig, ReplayConfig
from mmr1.config.algorithm_spec import algorithm_specs
from mmr1.config.file import load_config
from mmr1.trainer.algorithms import build_algorithm
from mmr1.trainer.algorithms.algorithm import LossInputs
from mmr1.trainer.sampling.dynamic_sampling import (
    NoSignalError,
    SampledGroups,
    Selection,
    group_filter,
)
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.trainer.sampling.step_rewards import StepRewardManager
from mmr1.types import Completion, Prompt, Reward, RolloutGroup, Sample, ScoredGroup, Status
from tests.paths import REPOSITORY
from tests.trainer.algorithms.required import config_of

DOCS = REPOSITORY / "docs/algorithms.md"
NAMES = sorted(algorithm_specs())


def completion(length: int, text: str = "") -> Completion:
    return Completion(np.arange(length), np.zeros(length, np.float32), text, False, 0)


def scored(lengths: list[int], rewards: list[float | None]) -> ScoredGroup:
    """A group with everything that any algorithm asks for."""
    group = RolloutGroup(Prompt(Sample("s", ()), "", ()), tuple(map(completion, lengths)))
    status = {True: Status.TIMEOUT, False: Status.OK}
    return ScoredGroup(
        group,
        tuple(Reward(r, status[r is None]) for r in rewards),
        greedy=Reward(0.5),
        steps=tuple(
            ((0, r or 0.0), (n - 1, r or 0.0)) for n, r in zip(lengths, rewards, strict=True)
        ),
    )


class Fixed:
    """A policy, reference or critic whose log-probs or values are given."""

    def __init__(self, value: float) -> None:
        self.value = value

    def logprobs(self, groups) -> torch.Tensor:
        lengths = [len(c.token_ids) for g in groups for c in g.completions]
        return torch.full((len(lengths), max(lengths)), self.value)

    values = logprobs


def experience_of(groups, config: AlgorithmConfig, reference: Fixed | None = None):
    critic = None if config.critic is None else Fixed(0.25)
    return build_experience(
        groups,
        build_algorithm(config),
        config,
        Models(Fixed(-1.0), reference, critic=critic),
        max_tokens=8,
    )


def inputs_of(batch, logprobs: torch.Tensor) -> LossInputs:
    old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
    return LossInputs(
        logprobs,
        old,
        batch.advantages,
        torch.zeros_like(logprobs),
        batch.completion_mask,
        batch.ref_logprobs,
        batch.coefficients.kl,
        batch.coefficients.entropy,
        chosen=batch.chosen,
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_raises_what_was_better_and_lowers_what_was_worse(name):
    config = config_of(name)
    algorithm = build_algorithm(config)
    groups = [scored([2, 3], [1.0, 0.0]), scored([1, 2, 2][:2], [0.0, None])]
    batch = experience_of(groups, config)
    assert batch.advantages.shape == (4, 3)
    assert (batch.advantages[~batch.completion_mask] == 0).all()
    # No valid reward; step rewards count all the same.
    assert batch.completion_mask[3].any() == algorithm.step_supervision
    logprobs = torch.full((4, 3), -1.0, requires_grad=True)
    algorithm.token_loss(inputs_of(batch, logprobs))[batch.completion_mask].sum().backward()
    assert (logprobs.grad[0, :2] < 0).all()
    assert (logprobs.grad[1, :1] > 0).all()
    assert algorithm.needs_signal


@pytest.mark.parametrize("name", [name for name in NAMES if name != "on_policy_distillation"])
def test_a_kl_in_the_loss_has_a_gradient_everywhere(name):
    config = config_of(name, kl_coef=0.5, use_kl_loss=True, kl_estimator="k2")
    algorithm = build_algorithm(config)
    assert not algorithm.needs_signal
    groups = [scored([2, 2], [1.0, 1.0])]
    batch = experience_of(groups, config, Fixed(-2.0))
    plain = experience_of(groups, config)
    logprobs = torch.full((2, 2), -1.0, requires_grad=True)
    algorithm.loss(inputs_of(batch, logprobs)).sum().backward()
    actual = logprobs.grad.clone()
    expected = -plain.advantages + 0.5 * (-1.0 - -2.0)
    if name in ("reinforce", "process_grpo", "reinforce_pp", "remax"):
        expected = -batch.advantages + 0.5  # equal rewards need not have advantage 0 here
    torch.testing.assert_close(actual, expected)


def test_kl_in_the_reward_is_taken_off_once():
    config = AlgorithmConfig(name="rloo", kl_coef=0.1, use_kl_loss=False, kl_estimator="k1")
    # log p - ref = 0.5 per token; 1 and 3 tokens: rewards 1 - 0.05 and 0 - 0.15.
    batch = build_experience(
        [scored([1, 3], [1.0, 0.0])],
        build_algorithm(config),
        config,
        Models(Fixed(-1.0), Fixed(-1.5)),
    )
    assert batch.advantages[0, 0].item() == pytest.approx(1.1)
    assert batch.advantages[1].tolist() == pytest.approx([-1.1] * 3)
    logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    loss = build_algorithm(config).loss(inputs_of(batch, logprobs))
    torch.testing.assert_close(loss, batch.advantages)  # -A * -1, no KL term beside it


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce_pp_baseline"])
def test_a_truncated_completion_keeps_its_penalty_in_the_baseline(name):
    """Rewards 1 and 0, penalties 0.05 and 0.15; the second is masked in the loss."""
    keys = {"kl_coef": 0.1, "use_kl_loss": False, "kl_estimator": "k1"}
    group = scored([1, 3], [1.0, 0.0])
    truncated = replace(group.group.completions[1], truncated=True)
    cut = replace(
        group, group=replace(group.group, completions=(group.group.completions[0], truncated))
    )
    advantages = []
    for masked, of in ((False, group), (True, cut)):
        config = AlgorithmConfig(name=name, mask_truncated_completions=masked, **keys)
        batch = build_experience(
            [of], build_algorithm(config), config, Models(Fixed(-1.0), Fixed(-1.5)), max_tokens=8
        )
        advantages.append(batch.advantages)
    assert advantages[0][0, 0] == advantages[1][0, 0] != 0
    assert advantages[0][1, 0] != 0
    assert not advantages[1][1].any()


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "cispo", "sapo"])
def test_another_advantage_of_the_group_under_the_same_loss(name):
    groups = [scored([2, 3], [1.0, 0.0])]
    rloo = experience_of(groups, AlgorithmConfig(name=name, adv_estimator="rloo"))
    assert rloo.advantages[:, 0].tolist() == [1.0, -1.0]
    # b = (2 * 1 + 3 * 0) / 5
    opo = experience_of(groups, AlgorithmConfig(name=name, adv_estimator="optimal_baseline"))
    assert opo.advantages[:, 0].tolist() == pytest.approx([0.6, -0.4])
    own = AlgorithmConfig(name=name)
    logprobs = torch.full((2, 3), -1.0)
    theirs = build_algorithm(AlgorithmConfig(name=name, adv_estimator="rloo"))
    torch.testing.assert_close(
        theirs.token_loss(inputs_of(rloo, logprobs)),
        build_algorithm(own).token_loss(inputs_of(rloo, logprobs)),
    )


def steps_of(*rewards: float, truncated: int | None = None, unjudged: int | None = None):
    """Completions of two tokens, one step each with the given reward."""
    completions = tuple(
        replace(completion(2), truncated=i == truncated) for i in range(len(rewards))
    )
    outcomes = tuple(
        Reward(None, Status.TIMEOUT) if i == unjudged else Reward(0.0) for i in range(len(rewards))
    )
    group = RolloutGroup(Prompt(Sample("s", ()), "", ()), completions)
    return ScoredGroup(group, outcomes, steps=tuple(((1, r),) for r in rewards))


@pytest.mark.parametrize("left_out", ["truncated", "unjudged"])
def test_process_supervision_compares_all_steps(left_out):
    """Steps 0, 1 and 5: mean 2, deviation sqrt(7); outcomes are only logged."""
    config = config_of("process_grpo", mask_truncated_completions=True)
    batch = experience_of([steps_of(0.0, 1.0, 5.0, **{left_out: 2})], config)
    expected = [-2 / 7**0.5, -1 / 7**0.5, 0.0 if left_out == "truncated" else 3 / 7**0.5]
    assert batch.advantages[:, 0].tolist() == pytest.approx(expected, abs=1e-5)
    assert batch.completion_mask[:, 0].tolist() == [True, True, left_out != "truncated"]


def sample_groups(
    draw: Callable[[int, int], list[ScoredGroup]],
    count: int,
    config: AlgorithmConfig,
    step_supervision: bool = False,
    functions: Sequence[str] = (),
) -> SampledGroups:
    """A step's groups, as the sampler selects them from what ``draw`` gives."""
    selection = Selection(count, config, group_filter(config, step_supervision, functions))
    while prompts := selection.prompts_needed():
        selection.add(draw(prompts, selection.batches))
    return selection.sampled()


def test_dynamic_sampling_looks_at_the_steps_that_the_algorithm_learns_from():
    config = config_of("process_grpo", dynamic_sampling=True, max_num_gen_batches=1)
    assert build_algorithm(config).step_supervision
    alike, differing = steps_of(1.0, 1.0), steps_of(0.0, 1.0)  # all outcomes are 0
    sampled = sample_groups(lambda count, batch: [alike, differing], 2, config, True)
    assert sampled.groups == [differing]
    with pytest.raises(NoSignalError):
        sample_groups(lambda count, batch: [alike, differing], 2, config)


def judged(*parts: tuple[float, float]) -> ScoredGroup:
    """Completions with ``(right, overlong penalty)`` each; the reward is their sum."""
    group = scored([1] * len(parts), [right + penalty for right, penalty in parts])
    rewards = tuple(
        replace(reward, components={"right": right, "overlong": penalty})
        for reward, (right, penalty) in zip(group.rewards, parts, strict=True)
    )
    return replace(group, rewards=rewards)


def test_groups_can_be_filtered_by_accuracy_alone():
    """DAPO, equation 11: ``0 < |right completions| < G``."""
    all_wrong = judged((0, 0), (0, -0.5))  # the penalties differ
    some_right, all_right = judged((1, 0), (0, 0)), judged((1, 0), (1, -0.5))
    groups = [all_wrong, some_right, all_right, judged((1, 0), (1, 0), (1, 0), (0, 0))]

    def kept(**keys: object) -> list[int]:
        config = AlgorithmConfig(dynamic_sampling=True, max_num_gen_batches=1, **keys)
        sampled = sample_groups(lambda count, batch: groups, 4, config)
        assert sampled.stats["sampling/no_signal"] == 4 - len(sampled.groups)
        return [groups.index(group) for group in sampled.groups]

    assert kept() == [0, 1, 2, 3]
    assert kept(filter_key="right") == [1, 3]
    assert kept(filter_key="right", filter_low=0.3, filter_high=0.7) == [1]
    assert kept(filter_key="overall", filter_low=0.6, filter_high=0.76) == [2, 3]
    with pytest.raises(NoSignalError, match=r"filter_key=right lies between 0\.8 and 1"):
        kept(filter_key="right", filter_low=0.8)


def test_each_reward_function_can_be_normalised_by_itself():
    """GDPO: the two agree in the sum; the format weighs half, accuracy 1, the rest is logged."""
    groups = [judged((1, 0), (0, 1)), judged((0, 0), (0, 0))]
    config = AlgorithmConfig(
        name="dapo", adv_estimator="gdpo", dynamic_sampling=True, max_num_gen_batches=1
    )
    weights = {"right": 1.0, "overlong": 0.5}
    batch = build_experience(
        groups, build_algorithm(config), config, Models(Fixed(-1.0)), reward_weights=weights
    )
    # In the group +-0.5 / sqrt(0.5); the batch is +-a, 0, 0 of deviation a sqrt(2 / 3).
    expected = (3 / 2) ** 0.5
    assert batch.advantages[:, 0].tolist() == pytest.approx([expected, -expected, 0, 0], abs=1e-4)

    def kept(functions: list[str]) -> list[int]:
        sampled = sample_groups(lambda count, batch: groups, 2, config, functions=functions)
        return [groups.index(group) for group in sampled.groups]

    assert kept(["right", "overlong"]) == [0]  # a signal that the sum does not show
    with pytest.raises(NoSignalError):
        kept([])
    for keys in ({"kl_coef": 0.1, "use_kl_loss": False}, {"reward_clip_range": (0, 1)}):
        with pytest.raises(ValueError, match=r"gdpo normalises .* leave one of them out"):
            AlgorithmConfig(adv_estimator="gdpo", **keys)


def test_rewards_are_clipped_before_the_advantages():
    config = AlgorithmConfig(name="dr_grpo", reward_clip_range=(0.0, 1.0))
    batch = experience_of([scored([1, 1], [5.0, -3.0]), scored([1, 1], [2.0, 7.0])], config)
    assert batch.advantages.flatten().tolist() == [0.5, -0.5, 0.0, 0.0]
    remax = AlgorithmConfig(name="remax", reward_clip_range=(0.0, 0.25))
    clipped = experience_of([scored([1, 1], [5.0, 0.0])], remax)  # the greedy one has 0.5
    assert clipped.advantages.flatten().tolist() == [0.0, -0.25]
    with pytest.raises(ValueError, match="the first must be below the second"):
        AlgorithmConfig(reward_clip_range=(1.0, 0.0))


def test_rewards_are_normalised_by_all_so_far():
    """Then clipped; what is logged stays. The first batch has its own moments only."""
    rows = [[[5.0, -3.0], [2.0, None]], [[7.0, 7.0], [1.0, 30.0]], [[4.0, 4.0], [4.0, 4.0]]]
    config = AlgorithmConfig(
        name="reinforce", baseline_momentum=0, normalize_rewards=True, reward_clip_range=(-1, 1.5)
    )
    algorithm = build_algorithm(config)
    seen: list[float] = []
    before = None
    for step in rows:
        if len(seen) == 7:  # as after a resume
            state = algorithm.state_dict()
            algorithm = build_algorithm(config)
            algorithm.load_state_dict(state)
        groups = [scored([1, 1], row) for row in step]
        batch = build_experience(groups, algorithm, config, Models(Fixed(0)))
        valid = [reward for row in step for reward in row if reward is not None]
        seen += valid
        mean, deviation = statistics.fmean(seen), statistics.stdev(seen)
        scaled = [min(max((r - mean) / deviation, -1), 1.5) for r in valid]
        own = statistics.fmean(scaled)
        expected = [r - (own if before is None else before) for r in scaled]
        assert batch.advantages[batch.completion_mask].tolist() == pytest.approx(expected, abs=1e-4)
        before = own  # momentum 0: the baseline is the mean of the batch before
        assert batch.groups[0].rewards[0].value == step[0][0]


def test_the_greedy_reward_is_normalised_with_the_others():
    config = AlgorithmConfig(name="remax", normalize_rewards=True)
    batch = experience_of([scored([1, 1], [2.0, 0.0])], config)  # the greedy one has 0.5
    deviation = statistics.stdev([2.0, 0.0])
    assert batch.advantages.flatten().tolist() == pytest.approx(
        [1.5 / deviation, -0.5 / deviation], abs=1e-5
    )


def test_reinforce_discounts_by_the_tokens_to_come():
    """``gamma ** (tokens after) (r - b)``, the baseline the mean 0.5."""
    config = AlgorithmConfig(name="reinforce", gamma=0.5)
    batch = build_experience(
        [scored([3, 1], [1.0, 0.0])], build_algorithm(config), config, Models(Fixed(0))
    )
    assert batch.advantages.tolist() == [[0.125, 0.25, 0.5], [-0.5, 0.0, 0.0]]


def test_groups_of_different_sizes_are_named():
    groups = [scored([1, 2], [1.0, 0.0]), scored([1], [1.0])]
    with pytest.raises(ValueError, match=r"2 of sample 's', 1 of sample 's'.*rollout\.n"):
        experience_of(groups, AlgorithmConfig())


def test_reinforce_with_the_plain_mean_as_baseline():
    """Batches of means 0.5 and 2: against 0.5, then against the mean of all four, 1.25."""
    batches = [scored([1, 1], [1.0, 0.0]), scored([1, 1], [3.0, 1.0]), scored([1, 1], [1.0, None])]
    expected = {
        "mean": [[0.5, -0.5], [2.5, 0.5], [-0.25, 0.0]],
        "batch_mean": [[0.5, -0.5], [1.0, -1.0], [0.0, 0.0]],
    }
    for baseline, advantages in expected.items():
        config = AlgorithmConfig(name="reinforce", baseline=baseline)
        algorithm = build_algorithm(config)
        for group, row in zip(batches, advantages, strict=True):
            batch = build_experience([group], algorithm, config, Models(Fixed(0)))
            assert batch.advantages.flatten().tolist() == row
    assert algorithm.state == {}  # the batch's own mean needs none


def test_reinforce_remembers_its_baseline():
    config = AlgorithmConfig(name="reinforce", baseline_momentum=0.5)
    algorithm = build_algorithm(config)
    first = build_experience([scored([1, 1], [1.0, 0.0])], algorithm, config, Models(Fixed(0)))
    assert first.advantages.flatten().tolist() == [0.5, -0.5]
    second = build_experience([scored([1, 1], [2.0, 0.0])], algorithm, config, Models(Fixed(0)))
    assert second.advantages.flatten().tolist() == [1.5, -0.5]
    assert algorithm.state == {"baseline": 0.75, "rewards": 4}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["algorithm.name=grop"], ["unknown algorithm 'grop'", "did you mean 'grpo'"]),
        (["algorithm.name=process_grpo"], ["step_rewards is not set", "algorithm.step_rewards"]),
        (["algorithm.name=rloo", "rollout.n=1"], ["rollout.n=1", "set rollout.n to 2"]),
        (["algorithm.kl_target=0.1"], ["kl_target is set and kl_coef is 0"]),
        (["algorithm.ref_model_sync_steps=5"], ["ref_model_sync_steps is set and kl_coef is 0"]),
        (["algorithm.entropy_target=1"], ["entropy_target is set and entropy_coef is 0"]),
        (
            ["algorithm.name=sapo", "algorithm.clip_ratio_dual=3"],
            ["sapo does not read clip_ratio_dual"],
        ),
        (["algorithm.sapo_tau=[2,2]"], ["grpo does not read sapo_tau", "one of sapo"]),
        (["algorithm.filter_key=math"], ["filter_key", "dynamic_sampling=true"]),
        (["algorithm.name=dapo", "algorithm.filter_key=maths"], ["overall, format, math"]),
        (["algorithm.filter_low=1"], ["filter_low=1 and filter_high=1", "no group lies between"]),
        (["rollout.sampling.temperature=0"], ["temperature=0", "above 0", "greedily"]),
        (["algorithm.oversample=2"], ["dynamic sampling, which is off"]),
        (["algorithm.clip_ratio_dual=0.5"], ["'algorithm.clip_ratio_dual'", "greater than 1"]),
        (["algorithm.kl_estimator=k4"], ["'algorithm.kl_estimator'", "'k3'"]),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_read(overrides, said):
    with pytest.raises(ValueError, match=r".") as error:
        load_config(None, ["model.path=a", *overrides])
    for words in said:
        assert words in str(error.value)


def test_the_documentation_has_every_algorithm_and_key():
    check = [sys.executable, REPOSITORY / "scripts/dev/algorithm_table.py", "--check"]
    finished = subprocess.run(check, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=False)
    assert finished.returncode == 0, "run: python scripts/dev/algorithm_table.py"
    text = DOCS.read_text()
    keys = {f"`{key}`" for key in AlgorithmConfig.model_fields if key not in ("name", "critic")}
    keys -= {"`replay`"}
    keys |= {f"`critic.{key}`" for key in CriticConfig.model_fields}
    keys |= {f"`replay.{key}`" for key in ReplayConfig.model_fields}
    rows = "\n".join(re.findall(r"^\| (`[^|]*) \|", text, re.M))
    assert [key for key in sorted(keys) if key not in rows] == []


def test_the_documented_file_is_the_real_one():
    path = "mmr1/trainer/algorithms/catalog/sapo.py"
    text = DOCS.read_text()
    assert f"`{path}`" in text
    assert (REPOSITORY / path).read_text() in re.findall(r"```python\n(.*?)```", text, re.S)


EQUAL, MIXED = [1.0, 1.0], [1.0, 0.0]


def drawing(*rewards: list[float]):
    """A ``draw`` that gives groups of these rewards in lockstep, and the sizes it was asked for."""
    queue = [scored([1, 1], r) for r in rewards]
    asked: list[int] = []

    def draw(count: int, number: int) -> list[ScoredGroup]:
        assert number == len(asked)
        asked.append(count)
        return [queue.pop(0) for _ in range(count)]

    return draw, asked


def test_dynamic_sampling_replaces_groups_without_signal():
    draw, asked = drawing(EQUAL, MIXED, EQUAL, MIXED, MIXED)
    sampled = sample_groups(draw, 3, AlgorithmConfig(name="dapo"))
    assert asked == [3, 2]
    assert [[r.value for r in s.rewards] for s in sampled.groups] == [MIXED] * 3
    assert len(sampled.all_groups) == 5
    assert sampled.stats == {
        "sampling/gen_batches": 2,
        "sampling/no_signal": 2,
        "sampling/surplus": 0,
        "sampling/extra_rollouts": 4,
    }


def test_over_provision_and_bound():
    draw, asked = drawing(MIXED, MIXED, MIXED, MIXED)
    sampled = sample_groups(draw, 2, AlgorithmConfig(name="dapo", oversample=2))
    assert asked == [4]
    assert len(sampled.groups) == 2
    assert sampled.stats["sampling/surplus"] == 2
    draw, asked = drawing(EQUAL, MIXED, EQUAL, EQUAL)
    sampled = sample_groups(draw, 2, AlgorithmConfig(name="dapo", max_num_gen_batches=3))
    assert asked == [2, 1, 1]
    assert len(sampled.groups) == 1  # the step makes do with what has a signal


def test_no_signal_at_all_stops_with_a_message():
    draw, _ = drawing(*[EQUAL] * 6)
    with pytest.raises(
        NoSignalError, match=r"3 generation batches \(6 prompts\).*rewards: 1\).*other data"
    ):
        sample_groups(draw, 2, AlgorithmConfig(name="dapo", max_num_gen_batches=3))


def test_without_dynamic_sampling_one_draw_is_all():
    draw, asked = drawing(EQUAL, EQUAL)
    sampled = sample_groups(draw, 2, AlgorithmConfig())
    assert (asked, len(sampled.groups), sampled.stats) == ([2], 2, {})


def test_step_rewards_go_to_the_tokens_that_end_steps():
    # Tokens of 2 characters each and an end token without text: "aabbcc".
    def decode(ids):
        return "".join("aabbcc"[2 * i : 2 * i + 2] for i in ids)

    group = RolloutGroup(Prompt(Sample("s", ()), "", ()), (completion(4, "aabbcc"),))
    bare = ScoredGroup(group, (Reward(1.0),))

    def steps(*actual):
        return StepRewardManager(lambda text, sample: actual, decode).score([bare])[0].steps

    assert steps((2, 0.1), (3, 0.2), (6, 1)) == (((0, 0.1), (1, 0.2), (3, 1.0)),)
    assert steps() == ((),)
    for wrong in ([(3, 0.1), (2, 0.2)], [(7, 0.1)], [(-1, 0.1)]):
        with pytest.raises(ValueError, match=r"sample 's'.*within its 6 characters"):
            steps(*wrong)


def own_algorithm() -> str:
    """The documentation's file; the whole loop runs it in ``test_loop.py``."""
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    return next(b for b in blocks if "median" in b)


def test_an_algorithm_of_ones_own_from_the_documentation(tmp_path):
    own = own_algorithm()
    assert len(own.splitlines()) <= 30
    path = tmp_path / "median.py"
    path.write_text(own)
    config = Config(model={"path": "a"}, algorithm={"name": f"{path}:build"}).algorithm
    algorithm = build_algorithm(config)
    batch = build_experience(
        [scored([1, 2, 1], [1.0, 0.0, 0.25])], algorithm, config, Models(Fixed(-1.0))
    )
    assert batch.advantages[:, 0].tolist() == pytest.approx([0.75, -0.25, 0.0])
    loss = algorithm.token_loss(inputs_of(batch, torch.full((3, 2), -1.0)))
    torch.testing.assert_close(loss, batch.advantages)


def test_a_file_that_builds_something_else_is_named(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text("def build(config):\n    return {}\n")
    with pytest.raises(ValueError, match="returned dict"):
        build_algorithm(AlgorithmConfig(name=f"{path}:build"))


def test_the_documented_step_rewards_run():
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    names: dict = {}
    exec(next(b for b in blocks if "def judge" in b), names)
    text = "<think>three</think><answer>3</answer>"
    assert names["judge"](text, Sample("s", (), answer=3)) == [(20, 0.5), (len(text), 1.0)]
    assert names["judge"](text, Sample("s", (), answer=4))[1] == (len(text), 0.0)
