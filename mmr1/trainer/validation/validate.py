"""Validation while a run trains: ``trainer.validation.data`` is evaluated by a step's weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mmr1.progress import LONG_S, WAIT_S
from mmr1.trainer.runs.step import PhaseTimer
from mmr1.trainer.validation.evaluate import Evaluation
from mmr1.types import ScoredGroup, StepStats

Scored = dict[str, list[ScoredGroup]]
"""The scored groups of each way of decoding."""


@dataclass
class Validation:
    """What the loop calls after the steps that ``trainer.validation.steps`` names.

    Attributes:
        evaluate: Evaluates the weights that the engine has; gives the groups to its argument.
        record: Keeps the completions of a step, by the way of decoding.
        last: The last step that was validated, and its result.
    """

    evaluate: Callable[[Callable[[str, list[ScoredGroup]], None]], Evaluation]
    record: Callable[[int, Scored], None]
    last: tuple[int, Evaluation] | None = field(default=None, init=False)

    def __call__(self, step: int) -> StepStats:
        """Validate after ``step``, 0 before the first; returns what to log, as ``eval/...``.

        The accuracy of each way of decoding, the means of its rewards' components, and the time.
        """
        timer = PhaseTimer(f"step {step}", LONG_S if step else WAIT_S)
        scored: Scored = {}

        def keep(mode: str, groups: list[ScoredGroup]) -> None:
            scored.setdefault(mode, []).extend(groups)

        with timer("validation"):
            result = self.evaluate(keep)
            self.record(step, scored)
        self.last = (step, result)
        return {**validation_stats(result), "time/validation": timer.phases["validation"]}


def validation_stats(result: Evaluation) -> StepStats:
    """``eval/greedy`` and ``eval/sampled``, the accuracies; ``eval/greedy/format`` and the like."""
    stats: StepStats = {}
    for name, mode in result.modes.items():
        stats[f"eval/{name}"] = mode.accuracy
        stats |= {f"eval/{name}/{part}": value for part, value in mode.components.items()}
    return stats
