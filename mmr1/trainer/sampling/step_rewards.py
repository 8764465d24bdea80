"""Process supervision: rewards of the steps of a completion, placed on tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mmr1.algorithms.advantages.process import ProcessAdvantage
from mmr1.config import Config
from mmr1.registry import Registry
from mmr1.trainer.sampling.reward_models import Decode, GroupValues, Steps, step_judge, token_at
from mmr1.types import Completion, RolloutGroup, Sample, ScoredGroup
from mmr1.vision.families.family import ModelFamily

StepRewardFunction = Callable[[str, Sample], Sequence[tuple[int, float]]]
"""``(completion text, sample) -> [(end, reward), ...]``, one pair per step.

``end`` is the number of characters up to the end of the step, in rising order. The function may be
a rule or call a process reward model.
"""

_FUNCTIONS = Registry("step reward function", {}, group="mmr1.step_rewards")


@dataclass(frozen=True, slots=True)
class StepRewards:
    """Rewards the steps of completions.

    Attributes:
        of_groups: The steps of each completion of groups.
    """

    of_groups: Callable[[Sequence[RolloutGroup]], Sequence[Steps]]

    def score(self, scored: Sequence[ScoredGroup]) -> list[ScoredGroup]:
        """The same groups with their ``steps``.

        Raises:
            ValueError: The ends that the function returned do not rise, or lie outside the text.
        """
        steps = iter(self.of_groups([s.group for s in scored]))
        return [replace(s, steps=tuple(next(steps) for _ in s.group.completions)) for s in scored]


def steps_by_function(
    function: StepRewardFunction, decode: Decode, groups: Sequence[RolloutGroup]
) -> list[Steps]:
    """The rewards of a function, placed on the tokens that end the steps."""
    return [_steps(function, decode, c, g.prompt.sample) for g in groups for c in g.completions]


def _steps(
    function: StepRewardFunction, decode: Decode, completion: Completion, sample: Sample
) -> Steps:
    steps = list(function(completion.text, sample))
    bounds = [0, *(end for end, _ in steps), len(completion.text)]
    if sorted(bounds) != bounds:
        raise ValueError(
            "algorithm.advantage.step_rewards: the steps of a completion of sample "
            f"'{sample.id}' end at {bounds[1:-1]}; ends must rise and stay within its "
            f"{bounds[-1]} characters"
        )
    return tuple((token_at(completion, end, decode), float(reward)) for end, reward in steps)


def build_step_rewards(
    config: Config, family: ModelFamily, values: Mapping[str, GroupValues]
) -> StepRewards | None:
    """The step rewards of ``algorithm.advantage.step_rewards``, or None.

    Args:
        values: Values of the reward models, by path.

    Raises:
        ValueError: The file or its function cannot be loaded.
    """
    advantage = config.algorithm.advantage
    if not isinstance(advantage, ProcessAdvantage):
        return None
    spec = advantage.step_rewards
    if spec in values:
        return StepRewards(step_judge(spec, family, values[spec]))
    decode = family.chat.completion_text
    return StepRewards(partial(steps_by_function, _FUNCTIONS.load(spec), decode))
