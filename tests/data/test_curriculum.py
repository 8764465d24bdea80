"""Drawing by pass rate: the rates by hand, the shares of the samples, an exact resume."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest

from mmr1.config import CurriculumConfig
from mmr1.config.file import load_config
from mmr1.data.quarantine import Quarantine
from mmr1.data.sampler import Curriculum, MediaCheck, SampleLoader, Sampler
from mmr1.types import Prompt, Reward, RolloutGroup, Sample, ScoredGroup, Status
from mmr1.vision.prepare import MediaCache


def sample(number: int) -> Sample:
    return Sample(f"s{number}", (), source="a")


def group(number: int, *right: float | None) -> ScoredGroup:
    """A group of the sample; None has no valid reward."""
    rewards = tuple(
        Reward(None, Status.TIMEOUT, {"math": None})
        if value is None
        else Reward(value + 7, components={"math": value, "format": 7.0})
        for value in right
    )
    return ScoredGroup(RolloutGroup(Prompt(sample(number), "", ()), ()), rewards)


def loader(curriculum: Curriculum | None, count: int = 5) -> SampleLoader:
    media = MediaCache(lambda medium: None)
    sampler = Sampler([sample(i) for i in range(count)], 0)
    return SampleLoader(sampler, MediaCheck(media, Quarantine(0)), curriculum)


@pytest.mark.parametrize("prefer", ["hard", "learnable"])
def test_samples_come_in_proportion_to_what_their_pass_rate_is_worth(prefer):
    curriculum = Curriculum(CurriculumConfig(function="math", prefer=prefer, floor=0.1), 0)
    rates = [0.0, 0.25, 0.5, 1.0]  # the fifth sample was never scored
    for number, rate in enumerate(rates):
        curriculum.learn(
            [group(number, *([1.0] * round(4 * rate)), *([0.0] * round(4 - 4 * rate)))]
        )
    worth = {"hard": [1, 0.75, 0.5, 0.1, 1], "learnable": [0.1, 0.75, 1, 0.1, 1]}[prefer]
    drawn = Counter(s.id for s in loader(curriculum).next(5000))
    for number, weight in enumerate(worth):
        share = weight / sum(worth)
        error = math.sqrt(share * (1 - share) / 5000)
        assert abs(drawn[f"s{number}"] / 5000 - share) < 5 * error, number
    assert curriculum.stats()["curriculum/pass_rate"] == pytest.approx(sum(rates) / 4)
    skipped = curriculum.stats()["curriculum/skipped"]
    assert skipped == pytest.approx(1 - sum(worth) / 5, abs=0.03)


def test_a_running_pass_rate_by_hand():
    curriculum = Curriculum(CurriculumConfig(function="math"), 0)
    curriculum.learn([group(0, 1.0, 0.0), group(1, 1.0, None), group(2, None, None)])
    assert curriculum.state_dict()["rates"] == {"a/s0": 0.5, "a/s1": 1.0}
    curriculum.learn([group(0, 0.0, 0.0)])
    assert curriculum.state_dict()["rates"]["a/s0"] == 0.5 * 0.5


def test_draws_go_on_exactly_after_a_resume():
    config = CurriculumConfig(function="math")

    def run(steps: int, state: str | None = None) -> tuple[list[str], str]:
        own = loader(Curriculum(config, 3))
        if state is not None:
            own.load_state_dict(json.loads(state))
        names = []
        for step in range(steps):
            names += [s.id for s in own.next(3)]
            own.curriculum.learn([group(int(names[-1][1]), 1.0, float(step % 2))])
        return names, json.dumps(own.state_dict())

    whole, _ = run(8)
    # A resumed run counts its steps from an even number on, so the rewards are the same.
    first, state = run(4)
    rest, _ = run(4, state)
    assert first + rest == whole
    assert whole != [s.id for s in loader(None).next(24)]


def test_a_value_that_is_no_pass_rate_is_refused():
    curriculum = Curriculum(CurriculumConfig(function="format"), 0)
    with pytest.raises(ValueError, match=r"function=format gave 7: .* values from 0 to 1"):
        curriculum.learn([group(0, 1.0)])
    with pytest.raises(ValueError, match=r"curriculum.function=maths.* not in rewards"):
        load_config(None, ["model.path=a", "data.curriculum={function: maths}"])
