"""Replay: which groups come back, how often, from where after a resume."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from mmr1.config import ReplayConfig
from mmr1.config.file import load_config
from mmr1.rollout.distribution import support_of
from mmr1.trainer.sampling.dynamic_sampling import rewards_differ
from mmr1.trainer.sampling.replay import (
    KeptGroups,
    Replay,
    completion_as_json,
    completion_from_json,
    mean_advantage,
    prompt_finder,
)
from mmr1.types import (
    Completion,
    Prompt,
    Reward,
    RolloutGroup,
    Sample,
    ScoredGroup,
    Span,
    Status,
)

SAMPLES = [Sample(f"s{i}", (), source="a") for i in range(8)]


def render(sample: Sample) -> Prompt:
    return Prompt(sample, f"<{sample.id}>", (1, 2))


def group(number: int, *rewards: float | None) -> ScoredGroup:
    completions = tuple(
        Completion(np.arange(3 + i), np.linspace(-2, -0.1, 3 + i, dtype=np.float32), "x", i == 1, 5)
        for i in range(len(rewards))
    )
    scores = tuple(
        Reward(None, Status.ERROR, {"r": None}, "broke")
        if r is None
        else Reward(r, components={"r": r})
        for r in rewards
    )
    return ScoredGroup(RolloutGroup(render(SAMPLES[number]), completions), scores)


def replay(**keys: float) -> Replay:
    return Replay(ReplayConfig(**keys), 0, rewards_differ, kept(SAMPLES))


def kept(samples: list[Sample]) -> KeptGroups:
    find = prompt_finder({"data": samples}, render)
    return KeptGroups("algorithm.filter_groups.type=replay", find)


def fill(own: Replay, step: int, *groups: ScoredGroup) -> list[ScoredGroup]:
    filled, _ = own.fill(step, groups)
    return filled


def names(groups: list[ScoredGroup]) -> list[str]:
    return [g.group.prompt.sample.id for g in groups]


def test_groups_without_a_signal_make_room_for_earlier_ones():
    own = replay(capacity=2)
    first = fill(own, 1, group(0, 1, 0), group(1, 1, 1))  # nothing to replay yet
    assert names(first) == ["s0", "s1"]
    second, stats = own.fill(2, [group(2, 0, 0), group(3, 1, 0), group(4, None, 1)])
    # One earlier group for two places; a group with one valid reward has no signal.
    assert names(second) == ["s0", "s3", "s4"]
    assert stats == {"replay/num_groups": 1.0, "replay/size": 2.0}
    fill(own, 3, group(5, 1, 0))  # the oldest of three goes
    third = fill(own, 4, group(6, 0, 0), group(7, 0, 0), group(1, 0, 0))
    assert sorted(names(third)) == ["s1", "s3", "s5"]


def test_a_group_comes_back_by_its_advantages():
    """``|A|``: of rewards 1, 0, 0, 0 the mean |A| is 0.75, of 1, 1, 0, 0 it is 0.866."""
    rows = [(1, 0, 0, 0), (1, 1, 0, 0), (1, 0, 0, 0)]
    worth = [(1.5 + 3 * 0.5) / 4, 0.5 / math.sqrt(1 / 3), (1.5 + 3 * 0.5) / 4]
    assert [mean_advantage(group(0, *row)) for row in rows] == pytest.approx(worth, abs=1e-5)
    own = replay()
    fill(own, 0, *(group(i, *row) for i, row in enumerate(rows)))
    drawn = Counter(names(fill(own, step, group(7, 1, 1)))[0] for step in range(1, 2001))
    for number, weight in enumerate(worth):
        share = weight / sum(worth)
        error = math.sqrt(share * (1 - share) / 2000)
        assert abs(drawn[f"s{number}"] / 2000 - share) < 5 * error


def test_what_is_kept_survives_a_checkpoint():
    own = replay()
    with_steps = replace(
        group(1, 1, None, 0), greedy=Reward(0.5), steps=(((0, 1.0), (2, 0.5)), (), ((3, 0.0),))
    )
    fill(own, 1, group(0, 1, 0), with_steps)
    other = replay()
    other.kept.load_state_dict(json.loads(json.dumps(own.kept.state_dict())))
    for mine, theirs in zip(own.kept.groups, other.kept.groups, strict=True):
        assert (mine.rewards, mine.greedy, mine.steps) == (
            theirs.rewards,
            theirs.greedy,
            theirs.steps,
        )
        assert mine.group.prompt == theirs.group.prompt
        for a, b in zip(mine.group.completions, theirs.group.completions, strict=True):
            assert (a.text, a.truncated, a.policy_version) == (
                b.text,
                b.truncated,
                b.policy_version,
            )
            assert np.array_equal(a.token_ids, b.token_ids)
            assert np.array_equal(a.logprobs, b.logprobs)
    assert names(fill(other, 9, group(3, 1, 1))) == names(fill(own, 9, group(3, 1, 1)))
    gone = kept(SAMPLES[1:])
    with pytest.raises(ValueError, match=r"sample 's0' of a, which the data do not have"):
        gone.load_state_dict(own.kept.state_dict())


def test_kept_ids_survive_a_checkpoint():
    (completion, *_) = group(0, 1, 0).group.completions
    kept = [np.array(ids, np.int32) for ids in ([token, 70_000] for token in completion.token_ids)]
    kept[-1] = kept[-1][:0]
    cut = replace(completion, support=support_of(kept))
    back = completion_from_json(json.loads(json.dumps(completion_as_json(cut))))
    assert back.support.ids.tolist() == cut.support.ids.tolist()
    assert back.support.sizes.tolist() == cut.support.sizes.tolist()
    assert back.support.ids.dtype == back.support.sizes.dtype == np.int32
    plain = completion_from_json(json.loads(json.dumps(completion_as_json(completion))))
    assert plain.support is None


def test_a_conversation_cannot_be_replayed():
    talk = group(0, 1, 0)
    first, second = talk.group.completions
    spans = (Span("assistant", 3, ""),)
    talk = replace(
        talk, group=replace(talk.group, completions=(replace(first, spans=spans), second))
    )
    with pytest.raises(ValueError, match=r"filter_groups\.type=replay keeps .* leave it out"):
        fill(replay(), 1, talk)


def test_replayed_completions_are_corrected_for_the_policy_that_sampled_them():
    keys = ["model.path=a", "model.dtype=float32", "rollout.engine=hf"]
    assert load_config(None, keys).resolved_rollout_is == "none"
    assert (
        load_config(None, [*keys, "algorithm.filter_groups.type=replay"]).resolved_rollout_is
        == "token"
    )
    for own, said in (
        (["algorithm.rollout_correction.importance_sampling=null"], "leave importance_sampling"),
        (["algorithm.advantage.normalize_rewards=true"], "leave one of them out"),
        (["algorithm.name=ppo", "rollout.n=1"], "no signal; set rollout.n to 2 or more"),
    ):
        with pytest.raises(ValueError, match=said):
            load_config(None, [*keys, "algorithm.filter_groups=replay", *own])
