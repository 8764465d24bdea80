"""Every algorithm by its name: what is refused, what reaches the update, one of a user's own."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch

from mmr1.algorithms import advantage, loss
from mmr1.algorithms.critic import CriticConfig
from mmr1.algorithms.interface import LossInputs
from mmr1.config import AlgorithmConfig, Config
from mmr1.config.file import load_config
from mmr1.config.presets import PRESETS
from mmr1.trainer.algorithm import build_algorithm
from mmr1.trainer.sampling.dynamic_sampling import (
    NoSignalError,
    Selection,
    group_filter,
    rewards_differ,
)
from mmr1.trainer.sampling.experience import Models, build_experience
from mmr1.trainer.sampling.step_rewards import StepRewards, steps_by_function
from mmr1.types import (
    Prompt,
    Reward,
    RolloutGroup,
    Sample,
    ScoredGroup,
    Status,
    StepStats,
)
from tests.algorithms.required import config_of
from tests.algorithms.scored_groups import (
    DOCS,
    Fixed,
    completion,
    experience_of,
    own_algorithm,
    scored,
)

NAMES = sorted(PRESETS)


def inputs_of(batch, logprobs: torch.Tensor) -> LossInputs:
    old = logprobs.detach() if batch.tokens.old_logprobs is None else batch.tokens.old_logprobs
    return LossInputs(
        logprobs,
        old,
        batch.tokens.advantages,
        torch.zeros_like(logprobs),
        batch.tokens.mask,
        batch.tokens.ref_logprobs,
        batch.coefficients.kl,
        batch.coefficients.entropy,
        chosen=batch.tokens.chosen,
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_raises_what_was_better_and_lowers_what_was_worse(name):
    config = config_of(name)
    algorithm = build_algorithm(config)
    groups = [scored([2, 3], [1.0, 0.0]), scored([1, 2, 2][:2], [0.0, None])]
    batch = experience_of(groups, config)
    assert batch.tokens.advantages.shape == (4, 3)
    assert (batch.tokens.advantages[~batch.tokens.mask] == 0).all()
    # No valid reward; step rewards count all the same.
    assert batch.tokens.mask[3].any() == algorithm.advantage.step_supervision
    logprobs = torch.full((4, 3), -1.0, requires_grad=True)
    algorithm.loss(inputs_of(batch, logprobs))[batch.tokens.mask].sum().backward()
    assert (logprobs.grad[0, :2] < 0).all()
    assert (logprobs.grad[1, :1] > 0).all()
    assert algorithm.needs_signal


@pytest.mark.parametrize("name", [name for name in NAMES if name != "on_policy_distillation"])
def test_a_kl_in_the_loss_has_a_gradient_everywhere(name):
    config = config_of(name, kl={"type": "loss", "coef": 0.5, "estimator": "k2"})
    algorithm = build_algorithm(config)
    assert not algorithm.needs_signal
    groups = [scored([2, 2], [1.0, 1.0])]
    batch = experience_of(groups, config, Fixed(-2.0))
    plain = experience_of(groups, config)
    logprobs = torch.full((2, 2), -1.0, requires_grad=True)
    algorithm.loss(inputs_of(batch, logprobs)).sum().backward()
    actual = logprobs.grad.clone()
    expected = -plain.tokens.advantages + 0.5 * (-1.0 - -2.0)
    if name in ("reinforce", "process_grpo", "reinforce_pp", "remax"):
        expected = -batch.tokens.advantages + 0.5  # equal rewards need not have advantage 0 here
    torch.testing.assert_close(actual, expected)


def test_kl_in_the_reward_is_taken_off_once():
    config = AlgorithmConfig(name="rloo", kl={"type": "reward", "coef": 0.1, "estimator": "k1"})
    # log p - ref = 0.5 per token; 1 and 3 tokens: rewards 1 - 0.05 and 0 - 0.15.
    batch = build_experience(
        [scored([1, 3], [1.0, 0.0])],
        build_algorithm(config),
        Models(Fixed(-1.0), Fixed(-1.5)),
    )
    assert batch.tokens.advantages[0, 0].item() == pytest.approx(1.1)
    assert batch.tokens.advantages[1].tolist() == pytest.approx([-1.1] * 3)
    logprobs = torch.full((2, 3), -1.0, requires_grad=True)
    loss = build_algorithm(config).loss(inputs_of(batch, logprobs))
    torch.testing.assert_close(loss, -batch.tokens.advantages)  # at ratio 1, no KL term beside it


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce_pp_baseline"])
def test_a_truncated_completion_keeps_its_penalty_in_the_baseline(name):
    """Rewards 1 and 0, penalties 0.05 and 0.15; the second is masked in the loss."""
    kl = {"type": "reward", "coef": 0.1}
    group = scored([1, 3], [1.0, 0.0])
    truncated = replace(group.group.completions[1], truncated=True)
    cut = replace(
        group, group=replace(group.group, completions=(group.group.completions[0], truncated))
    )
    advantages = []
    for masked, of in ((False, group), (True, cut)):
        config = AlgorithmConfig(name=name, mask_truncated_completions=masked, kl=kl)
        batch = build_experience(
            [of], build_algorithm(config, max_tokens=8), Models(Fixed(-1.0), Fixed(-1.5))
        )
        advantages.append(batch.tokens.advantages)
    assert advantages[0][0, 0] == advantages[1][0, 0] != 0
    assert advantages[0][1, 0] != 0
    assert not advantages[1][1].any()


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "cispo", "sapo"])
def test_another_advantage_of_the_group_under_the_same_loss(name):
    groups = [scored([2, 3], [1.0, 0.0])]
    rloo = experience_of(groups, AlgorithmConfig(name=name, advantage={"type": "rloo"}))
    assert rloo.tokens.advantages[:, 0].tolist() == [1.0, -1.0]
    # b = (2 * 1 + 3 * 0) / 5
    opo = experience_of(groups, AlgorithmConfig(name=name, advantage={"type": "optimal_baseline"}))
    assert opo.tokens.advantages[:, 0].tolist() == pytest.approx([0.6, -0.4])
    own = AlgorithmConfig(name=name)
    logprobs = torch.full((2, 3), -1.0)
    theirs = build_algorithm(AlgorithmConfig(name=name, advantage={"type": "rloo"}))
    torch.testing.assert_close(
        theirs.loss(inputs_of(rloo, logprobs)),
        build_algorithm(own).loss(inputs_of(rloo, logprobs)),
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
    assert batch.tokens.advantages[:, 0].tolist() == pytest.approx(expected, abs=1e-5)
    assert batch.tokens.mask[:, 0].tolist() == [True, True, left_out != "truncated"]


def sample_groups(
    draw: Callable[[int, int], list[ScoredGroup]],
    count: int,
    config: AlgorithmConfig,
    step_supervision: bool = False,
    functions: Sequence[str] = (),
) -> tuple[list[ScoredGroup], StepStats]:
    """A step's groups and metrics, as the sampler selects them from what ``draw`` gives."""
    assert config.resamples is not None
    selection = Selection(
        count, config.resamples, group_filter(config, step_supervision, functions)
    )
    while prompts := selection.prompts_needed():
        selection.add(draw(prompts, selection.batches))
    return selection.sampled()


def test_dynamic_sampling_looks_at_the_steps_that_the_algorithm_learns_from():
    config = config_of("process_grpo", filter_groups={"type": "resample", "max_num_gen_batches": 1})
    assert build_algorithm(config).advantage.step_supervision
    alike, differing = steps_of(1.0, 1.0), steps_of(0.0, 1.0)  # all outcomes are 0
    sampled, _ = sample_groups(lambda count, batch: [alike, differing], 2, config, True)
    assert sampled == [differing]
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

    def kept(**within: object) -> list[int]:
        keys = {"type": "resample", "max_num_gen_batches": 1, "range": within or None}
        config = AlgorithmConfig(filter_groups=keys)
        sampled, stats = sample_groups(lambda count, batch: groups, 4, config)
        assert stats["dynamic_sampling/frac_zero_std"] == 4 - len(sampled)
        return [groups.index(group) for group in sampled]

    assert kept() == [0, 1, 2, 3]
    assert kept(metric="right") == [1, 3]
    assert kept(metric="right", between=(0.3, 0.7)) == [1]
    assert kept(metric="overall", between=(0.6, 0.76)) == [2, 3]
    for group in groups:  # another number that a function returned
        for reward in group.rewards:
            reward.components["rule/accuracy"] = reward.components["right"]
    assert kept(metric="rule/accuracy") == [1, 3]
    with pytest.raises(NoSignalError, match=r"metric=right lies between 0\.8 and 1"):
        kept(metric="right", between=(0.8, 1.0))


def test_each_reward_function_can_be_normalised_by_itself():
    """GDPO: the two agree in the sum; the format weighs half, accuracy 1, the rest is logged."""
    groups = [judged((1, 0), (0, 1)), judged((0, 0), (0, 0))]
    config = AlgorithmConfig(
        name="dapo", advantage={"type": "gdpo"}, filter_groups={"max_num_gen_batches": 1}
    )
    weights = {"right": 1.0, "overlong": 0.5}
    batch = build_experience(
        groups, build_algorithm(config, reward_weights=weights), Models(Fixed(-1.0))
    )
    # In the group +-0.5 / sqrt(0.5); the batch is +-a, 0, 0 of deviation a sqrt(2 / 3).
    expected = (3 / 2) ** 0.5
    assert batch.tokens.advantages[:, 0].tolist() == pytest.approx(
        [expected, -expected, 0, 0], abs=1e-4
    )

    def kept(functions: list[str]) -> list[int]:
        sampled, _ = sample_groups(lambda count, batch: groups, 2, config, functions=functions)
        return [groups.index(group) for group in sampled]

    assert kept(["right", "overlong"]) == [0]  # a signal that the sum does not show
    with pytest.raises(NoSignalError):
        kept([])


def test_rewards_are_clipped_before_the_advantages():
    config = AlgorithmConfig(name="dr_grpo", advantage={"reward_clip_range": (0.0, 1.0)})
    batch = experience_of([scored([1, 1], [5.0, -3.0]), scored([1, 1], [2.0, 7.0])], config)
    assert batch.tokens.advantages.flatten().tolist() == [0.5, -0.5, 0.0, 0.0]
    remax = AlgorithmConfig(name="remax", advantage={"reward_clip_range": (0.0, 0.25)})
    clipped = experience_of([scored([1, 1], [5.0, 0.0])], remax)  # the greedy one has 0.5
    assert clipped.tokens.advantages.flatten().tolist() == [0.0, -0.25]
    with pytest.raises(ValueError, match="the first must be below the second"):
        AlgorithmConfig(advantage={"reward_clip_range": (1.0, 0.0)})


def test_rewards_are_normalised_by_all_so_far():
    """Then clipped; what is logged stays. The first batch has its own moments only."""
    rows = [[[5.0, -3.0], [2.0, None]], [[7.0, 7.0], [1.0, 30.0]], [[4.0, 4.0], [4.0, 4.0]]]
    config = AlgorithmConfig(
        name="reinforce", advantage={"normalize_rewards": True, "reward_clip_range": (-1, 1.5)}
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
        batch = build_experience(groups, algorithm, Models(Fixed(0)))
        valid = [reward for row in step for reward in row if reward is not None]
        seen += valid
        mean, deviation = statistics.fmean(seen), statistics.stdev(seen)
        scaled = [min(max((r - mean) / deviation, -1), 1.5) for r in valid]
        own = statistics.fmean(scaled)
        expected = [r - (own if before is None else before) for r in scaled]
        assert batch.tokens.advantages[batch.tokens.mask].tolist() == pytest.approx(
            expected, abs=1e-4
        )
        before = own if before is None else 0.9 * before + 0.1 * own
        assert batch.groups[0].rewards[0].value == step[0][0]


def test_the_greedy_reward_is_normalised_with_the_others():
    config = AlgorithmConfig(name="remax", advantage={"normalize_rewards": True})
    batch = experience_of([scored([1, 1], [2.0, 0.0])], config)  # the greedy one has 0.5
    deviation = statistics.stdev([2.0, 0.0])
    assert batch.tokens.advantages.flatten().tolist() == pytest.approx(
        [1.5 / deviation, -0.5 / deviation], abs=1e-5
    )


def test_reinforce_discounts_by_the_tokens_to_come():
    """``gamma ** (tokens after) (r - b)``, the baseline the mean 0.5."""
    config = AlgorithmConfig(name="reinforce", advantage={"gamma": 0.5})
    batch = build_experience(
        [scored([3, 1], [1.0, 0.0])], build_algorithm(config), Models(Fixed(0))
    )
    assert batch.tokens.advantages.tolist() == [[0.125, 0.25, 0.5], [-0.5, 0.0, 0.0]]


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
        config = AlgorithmConfig(name="reinforce", advantage={"baseline": baseline})
        algorithm = build_algorithm(config)
        for group, row in zip(batches, advantages, strict=True):
            batch = build_experience([group], algorithm, Models(Fixed(0)))
            assert batch.tokens.advantages.flatten().tolist() == row
    assert algorithm.advantage.state == {}  # the batch's own mean needs none


def test_reinforce_remembers_its_baseline():
    config = AlgorithmConfig(name="reinforce")
    algorithm = build_algorithm(config)
    first = build_experience([scored([1, 1], [1.0, 0.0])], algorithm, Models(Fixed(0)))
    assert first.tokens.advantages.flatten().tolist() == [0.5, -0.5]
    second = build_experience([scored([1, 1], [2.0, 0.0])], algorithm, Models(Fixed(0)))
    assert second.tokens.advantages.flatten().tolist() == [1.5, -0.5]
    assert algorithm.advantage.state == {"baseline": pytest.approx(0.55), "rewards": 4}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["algorithm.name=grop"], ["no such preset", "did you mean 'grpo'"]),
        (["algorithm.name=process_grpo"], ["algorithm.advantage.step_rewards", "missing"]),
        (["rollout.n=1", "algorithm.name=rloo"], ["rollout.n=1", "set rollout.n to 2"]),
        (["algorithm.kl.target=0.1"], ["algorithm.kl.coef", "missing"]),
        (["algorithm.entropy.target=1"], ["algorithm.entropy.coef", "missing"]),
        (["algorithm.name=sapo", "algorithm.loss.clip_ratio_dual=3"], ["'sapo' has no"]),
        (["algorithm.loss.tau_pos=2"], ["'ppo' has no 'tau_pos'", "sapo"]),
        (["algorithm.filter_groups.range.between=[0.2,1]"], ["range.metric", "missing"]),
        (
            ["algorithm.name=dapo", "algorithm.filter_groups.range.metric=maths"],
            ["not in rewards"],
        ),
        (
            [
                "algorithm.name=dapo",
                "algorithm.filter_groups.range={metric: math, between: [1, 1]}",
            ],
            ["the first must be below the second"],
        ),
        (["rollout.temperature=0"], ["rollout.temperature", "greater than 0"]),
        (["algorithm.loss.clip_ratio_dual=0.5"], ["loss.clip_ratio_dual", "greater than 1"]),
        (["algorithm.kl.coef=1", "algorithm.kl.estimator=k4"], ["algorithm.kl.estimator", "'k3'"]),
        (
            ["algorithm.advantage=gdpo", "algorithm.advantage.reward_clip_range=[0,1]"],
            ["'gdpo' has no 'reward_clip_range'"],
        ),
        (
            ["algorithm.advantage=gdpo", "algorithm.kl={coef: 1, type: reward}"],
            ["no reward that could hold a penalty"],
        ),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_read(overrides, said):
    with pytest.raises(ValueError, match=r".") as error:
        load_config(None, ["model.path=a", *overrides])
    for words in said:
        assert words in str(error.value)


def test_the_documentation_has_every_preset_type_and_key():
    parts = [*advantage.parts.values(), *loss.parts.values()]
    sections = [*(part.section for part in parts), advantage.own, loss.own]
    words = {*PRESETS, *(part.name for part in parts)}
    for section in (AlgorithmConfig, CriticConfig, *sections):
        words |= set(section.model_fields) - {"name", "type"}
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", DOCS))))
    named |= set(re.findall(r"\w+", str([*loss.table(), *advantage.table()])))
    assert sorted(words - named) == []


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
    sampled, stats = sample_groups(draw, 3, AlgorithmConfig(name="dapo"))
    assert asked == [3, 2]
    assert [[r.value for r in s.rewards] for s in sampled] == [MIXED] * 3
    assert stats == {
        "dynamic_sampling/num_gen_batches": 2,
        "dynamic_sampling/frac_zero_std": 2,
        "dynamic_sampling/num_surplus_groups": 0,
        "dynamic_sampling/num_extra_completions": 4,
    }


def test_over_provision_and_bound():
    draw, asked = drawing(MIXED, MIXED, MIXED, MIXED)
    sampled, stats = sample_groups(
        draw, 2, AlgorithmConfig(name="dapo", filter_groups={"gen_batch_size": 4})
    )
    assert asked == [4]
    assert len(sampled) == 2
    assert stats["dynamic_sampling/num_surplus_groups"] == 2
    draw, asked = drawing(EQUAL, MIXED, EQUAL, EQUAL)
    sampled, _ = sample_groups(
        draw, 2, AlgorithmConfig(name="dapo", filter_groups={"max_num_gen_batches": 3})
    )
    assert asked == [2, 1, 1]
    assert len(sampled) == 1  # the step makes do with what has a signal


def test_the_surplus_of_a_step_is_the_beginning_of_the_next():
    first, second, third = (scored([1, 1], MIXED) for _ in range(3))
    resamples = AlgorithmConfig(
        name="dapo", filter_groups={"gen_batch_size": 3, "keep_surplus": True}
    ).resamples
    before = Selection(2, resamples, rewards_differ)
    before.add([first, second, third])
    groups, stats = before.sampled()
    assert groups == [first, second]
    assert before.surplus == [third]
    assert stats["dynamic_sampling/num_extra_completions"] == 0  # the next step learns from it
    after = Selection(2, resamples, rewards_differ, before.surplus)
    assert after.prompts_needed() == 3
    fourth, equal = scored([1, 1], MIXED), scored([1, 1], EQUAL)
    after.add([equal, fourth, equal])
    groups, stats = after.sampled()
    assert groups == [third, fourth]
    assert after.all_groups == [equal, fourth, equal]
    assert stats == {
        "dynamic_sampling/num_gen_batches": 1,
        "dynamic_sampling/frac_zero_std": 2,
        "dynamic_sampling/num_surplus_groups": 0,
        "dynamic_sampling/num_extra_completions": 4,
    }
    enough = Selection(1, resamples, rewards_differ, [first])
    assert enough.prompts_needed() == 0
    assert enough.sampled()[0] == [first]


def test_no_signal_at_all_stops_with_a_message():
    draw, _ = drawing(*[EQUAL] * 6)
    with pytest.raises(
        NoSignalError, match=r"3 generation batches \(6 prompts\).*rewards: 1\).*other data"
    ):
        sample_groups(
            draw, 2, AlgorithmConfig(name="dapo", filter_groups={"max_num_gen_batches": 3})
        )


def test_step_rewards_go_to_the_tokens_that_end_steps():
    # Tokens of 2 characters each and an end token without text: "aabbcc".
    def decode(ids):
        return "".join("aabbcc"[2 * i : 2 * i + 2] for i in ids)

    group = RolloutGroup(Prompt(Sample("s", ()), "", ()), (completion(4, "aabbcc"),))
    bare = ScoredGroup(group, (Reward(1.0),))

    def steps(*actual):
        of_groups = partial(steps_by_function, lambda text, sample: actual, decode)
        return StepRewards(of_groups).score([bare])[0].steps

    assert steps((2, 0.1), (3, 0.2), (6, 1)) == (((0, 0.1), (1, 0.2), (3, 1.0)),)
    assert steps() == ((),)
    for wrong in ([(3, 0.1), (2, 0.2)], [(7, 0.1)], [(-1, 0.1)]):
        with pytest.raises(ValueError, match=r"sample 's'.*within its 6 characters"):
            steps(*wrong)


def test_an_advantage_and_a_loss_of_ones_own_from_the_documentation(tmp_path):
    own = own_algorithm()
    assert len(own.splitlines()) <= 40
    path = tmp_path / "median.py"
    path.write_text(own)
    keys = {"advantage": f"{path}:median_baseline", "loss": f"{path}:capped"}
    config = Config(model={"path": "a"}, algorithm=keys).algorithm
    algorithm = build_algorithm(config)
    batch = build_experience([scored([1, 2, 1], [1.0, 0.0, 0.25])], algorithm, Models(Fixed(-1.0)))
    assert batch.tokens.advantages[:, 0].tolist() == pytest.approx([0.75, -0.25, 0.0])
    loss = algorithm.loss(inputs_of(batch, torch.full((3, 2), -1.0)))
    torch.testing.assert_close(loss, -batch.tokens.advantages)
    of_preset = AlgorithmConfig(name="gspo", advantage=keys["advantage"])
    assert build_algorithm(of_preset).policy_loss.ratio == "completion_mean"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("Advantage(per_completion(lambda r, v: r.mean()))", r"shape \(\); .* \(1, 3\): \[G, n\]"),
        ("Advantage(per_completion(lambda r, v: r.tolist()))", r"returned list; .* \(1, 3\)"),
        ("Advantage(lambda x: x.rewards)", r"advantage\.type=.*own.py:mine.*\(1, 3\); .* \(3, 2\)"),
        ("Loss(lambda x: -x.logprobs.mean())", r"loss\.type=.*shape \(\); .* \(3, 2\): \[B, R\]"),
        ("Loss(lambda x: (-x.logprobs, {}))", r"loss\.type=.*returned tuple; "),
    ],
)
def test_an_own_part_that_is_not_a_number_for_each_token_is_refused(tmp_path, code, message):
    """A scalar would be broadcast, and the run would learn something else."""
    path = tmp_path / "own.py"
    names = "Advantage, Loss, per_completion"
    path.write_text(f"from mmr1.algorithms import {names}\ndef mine(): return {code}\n")
    key = "loss" if "Loss(" in code else "advantage"
    config = Config(model={"path": "a"}, algorithm={key: f"{path}:mine"}).algorithm
    algorithm = build_algorithm(config)

    def learn() -> None:
        group = scored([1, 2, 1], [1.0, 0.0, 0.25])
        batch = build_experience([group], algorithm, Models(Fixed(-1.0)))
        algorithm.loss(inputs_of(batch, torch.full((3, 2), -1.0)))

    with pytest.raises(ValueError, match=message):
        learn()


def test_the_documented_step_rewards_run():
    blocks = re.findall(r"```python\n(.*?)```", DOCS, re.S)
    names: dict = {}
    exec(next(b for b in blocks if "def judge" in b), names)
    text = "<think>three</think><answer>3</answer>"
    assert names["judge"](text, Sample("s", (), answer=3)) == [(20, 0.5), (len(text), 1.0)]
    assert names["judge"](text, Sample("s", (), answer=4))[1] == (len(text), 0.0)
