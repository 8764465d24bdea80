"""What is asked of the engine for one prompt: its group, and what is sampled beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from mmr1.config import Config
from mmr1.rollout.protocol import Request
from mmr1.trainer.sampling.views import changes, under
from mmr1.types import Prompt
from mmr1.vision.views import view_options

Role = Literal["group", "beside", "greedy"]
ROLES: tuple[Role, ...] = ("group", "beside", "greedy")


@dataclass(frozen=True, slots=True)
class Part:
    """Completions that one request brings.

    Attributes:
        role: ``group``: learned from. ``beside``: for a reward that compares (T-GRPO). ``greedy``:
            the group's baseline (ReMax).
        view: Options of the media under which a part of the group is sampled, if the model sees
            them in another way.
    """

    role: Role
    request: Request
    view: Mapping[str, float] = field(default_factory=dict)


Planner = Callable[[int, Prompt, int], Sequence[Part]]
"""From a step, a prompt and the seed of its first completion: the parts of the prompt's group."""


def planner(config: Config, greedy: bool) -> Planner:
    """The planner of a run.

    Args:
        greedy: The advantage compares each group with a greedy completion.
    """
    rollout, steps = config.rollout, config.trainer.steps
    sampling, views, n = rollout.sampling, rollout.views, rollout.n

    def plan(step: int, prompt: Prompt, seed: int) -> list[Part]:
        seeds = tuple(range(seed, seed + n))
        if views is None or not changes(prompt.media, views.view):
            parts = [Part("group", Request(prompt, seeds, sampling))]
        else:
            # What a view draws depends on the seed: on the run, the step and the record.
            options = view_options(views.view, views.strength_at(step, steps), seed)
            other, count = under(prompt, options), views.count(n)
            plain = n if views.loss == "none" else n - count
            parts = [Part("group", Request(prompt, seeds[:plain], sampling))] if plain else []
            if views.loss == "none":
                more = tuple(range(seed + n, seed + n + count))
                parts.append(Part("beside", Request(other, more, sampling)))
            else:
                parts.append(Part("group", Request(other, seeds[plain:], sampling), options))
        if greedy:
            parts.append(Part("greedy", Request(prompt, (seed,), sampling.greedy())))
        return parts

    return plan
