"""Replay: which groups come back, how often, from where after a resume."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmr1.config import ReplayConfig
from mmr1.config.file import load_config
from mmr1.rollout.distribution import support_of
from mmr1.trainer.sampling.codec import decoded, encoded
from mmr1.trainer.sampling.dynamic_sampling import rewards_differ
from mmr1.trainer.sampling.replay import (
    KeptGroups,
    Replay,
    mean_advantage,
    prompt_finder,
)
from mmr1.types import (
    Completion,
    MediaRef,
    Message,
    Prompt,
    Reward,
    RolloutGroup,
    Sample,
    ScoredGroup,
    Span,
    Status,
    TextPart,
    ToolCall,
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
    return KeptGroups(find)


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
    back = decoded(json.loads(json.dumps(encoded(cut))))
    assert back.support.ids.tolist() == cut.support.ids.tolist()
    assert back.support.sizes.tolist() == cut.support.sizes.tolist()
    assert back.support.ids.dtype == back.support.sizes.dtype == np.int32
    plain = decoded(json.loads(json.dumps(encoded(completion))))
    assert plain.support is None


def test_a_conversation_survives_a_checkpoint_with_its_opening():
    picture = MediaRef("image", data=b"\x00png", size=(3, 4), options={"fps": 2.5})
    spans = (
        Span("assistant", 2, "look", calls=(ToolCall("zoom", {"box": [1, 2]}, "no"),), reward=0.5),
        Span("tool", 1, "here", (picture,), answers=(Message("tool", (TextPart("a"), picture)),)),
        Span("assistant", 1, "4", fork=True),
    )
    talk = group(0, 1, 0)
    first, second = talk.group.completions
    first = replace(
        first, spans=spans, reward=1.5, failure=(Status.TIMEOUT, "late"), versions=((4, 1), (5, 2))
    )
    sample = replace(SAMPLES[0], messages=(Message("user", (TextPart("begun"),)),))
    begun = replace(talk.group.prompt, sample=sample, text="begun", token_ids=(3, 4))
    talk = replace(talk, group=RolloutGroup(begun, (first, second)))
    own, other = kept(SAMPLES), kept(SAMPLES)
    own.keep([talk, group(1, 0, 1)])
    other.load_state_dict(json.loads(json.dumps(own.state_dict())))
    back, plain = other.groups
    assert back.group.prompt == begun
    assert plain.group.prompt == render(SAMPLES[1])
    read = back.group.completions[0]
    assert (read.versions, read.reward) == (first.versions, 1.5)
    assert read.failure == (Status.TIMEOUT, "late")
    assert read.failure[0] is Status.TIMEOUT
    assert read.spans[1:] == spans[1:]
    (call,) = read.spans[0].calls
    assert (call.name, list(call.arguments["box"]), call.error) == ("zoom", [1, 2], "no")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
)


@given(JSON, st.binary(), st.sampled_from(["<i4", "<f4", "|u1", "<i8"]))
def test_any_value_is_read_back_as_it_was(value, data, kind):
    array = np.frombuffer(data[: len(data) // 8 * 8], kind)
    found = decoded(json.loads(json.dumps(encoded((value, data, array)))))
    assert found[:2] == (value, data)
    assert found[2].dtype == array.dtype
    assert found[2].tobytes() == array.tobytes()


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
