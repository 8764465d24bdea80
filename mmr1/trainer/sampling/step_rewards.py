"""Process supervision: rewards of the steps of a completion, placed on tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from mmr1.config import Config, ProcessAdvantage
from mmr1.registry import Registry
from mmr1.trainer.sampling.reward_models import GroupValues, ProcessRewardModel, token_at
from mmr1.types import Completion, RolloutGroup, Sample, ScoredGroup
from mmr1.vision.families.family import ModelFamily

StepRewardFunction = Callable[[str, Sample], Sequence[tuple[int, float]]]
"""``(completion text, sample) -> [(end, reward), ...]``, one pair per step.

``end`` is the number of characters up to the end of the step, in rising order. The function may be
a rule or call a process reward model.
"""

_FUNCTIONS = Registry("step reward function", {}, group="mmr1.step_rewards")


class StepRewards(Protocol):
    """Rewards the steps of completions."""

    def score(self, scored: Sequence[ScoredGroup]) -> list[ScoredGroup]:
        """The same groups with their ``steps``."""
        ...


class StepRewardManager:
    """Places the rewards of steps on the tokens that end the steps."""

    def __init__(
        self, function: StepRewardFunction, decode: Callable[[Sequence[int]], str]
    ) -> None:
        self._function = function
        self._decode = decode

    def score(self, scored: Sequence[ScoredGroup]) -> list[ScoredGroup]:
        """The same groups with their ``steps``.

        Raises:
            ValueError: The ends that the function returned do not rise, or lie outside the text.
        """
        return [replace(s, steps=self._steps(s.group)) for s in scored]

    def _steps(self, group: RolloutGroup) -> tuple[tuple[tuple[int, float], ...], ...]:
        sample = group.prompt.sample
        return tuple(self._of_completion(c, sample) for c in group.completions)

    def _of_completion(self, completion: Completion, sample: Sample) -> tuple[Any, ...]:
        steps = list(self._function(completion.text, sample))
        bounds = [0, *(end for end, _ in steps), len(completion.text)]
        if sorted(bounds) != bounds:
            raise ValueError(
                "algorithm.advantage.step_rewards: the steps of a completion of sample "
                f"'{sample.id}' end at {bounds[1:-1]}; ends must rise and stay within its "
                f"{bounds[-1]} characters"
            )
        return tuple(
            (token_at(completion, end, self._decode), float(reward)) for end, reward in steps
        )


def build_step_reward_manager(
    config: Config, family: ModelFamily, values: Mapping[str, GroupValues]
) -> StepRewards | None:
    """What rewards steps as ``algorithm.advantage.step_rewards`` says, or None.

    Args:
        values: Of the reward models, by path.

    Raises:
        ValueError: The file or its function cannot be loaded.
    """
    advantage = config.algorithm.advantage
    if not isinstance(advantage, ProcessAdvantage):
        return None
    spec = advantage.step_rewards
    if spec in values:
        return ProcessRewardModel(spec, family, values[spec])
    decode = partial(family.tokenizer.decode, skip_special_tokens=True)
    return StepRewardManager(_FUNCTIONS.load(spec), decode)
