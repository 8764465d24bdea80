"""Completions without the tokens of an environment, as advantages see them.

What the environment answered is no action of the policy. So the return of a token, its discount and
its temporal difference go on at the policy's next token, as if nothing stood between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from mmr1.trainer.algorithms.algorithm import AdvantageInputs
from mmr1.trainer.forward.sequences import length_mask, sampled_mask
from mmr1.types import Completion, RolloutGroup


class SampledTokens:
    """Moves the policy's tokens of each row to its beginning, and what was made of them back.

    Args:
        sampled: ``[B, R]`` bool. Where no row has a gap, nothing is moved or copied.
    """

    def __init__(self, sampled: torch.Tensor) -> None:
        gaps = (~sampled[:, :-1] & sampled[:, 1:]).any()
        self._order = (~sampled).long().argsort(dim=1, stable=True) if gaps else None

    def of(self, inputs: AdvantageInputs) -> AdvantageInputs:
        """The inputs with every ``[B, R]`` tensor gathered."""
        if self._order is None:
            return inputs
        tensors = {f.name: self._gathered(getattr(inputs, f.name)) for f in fields(inputs)}
        return replace(inputs, **tensors)

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """``[B, R]`` values of gathered tokens at the tokens' own places."""
        if self._order is None:
            return values
        return torch.zeros_like(values).scatter(1, self._order, values)

    def _gathered(self, value: Any) -> Any:
        assert self._order is not None
        by_token = isinstance(value, torch.Tensor) and value.shape == self._order.shape
        return value.gather(1, self._order) if by_token else value


def after_picture(groups: Sequence[RolloutGroup]) -> torch.Tensor | None:
    """``[B, R]`` bool: sampled tokens after the first picture that an environment showed.

    None where none was shown.
    """
    completions = [c for g in groups for c in g.completions]
    if not any(c.media for c in completions):
        return None
    mask = torch.zeros_like(length_mask([len(c.token_ids) for c in completions]))
    for row, completion in zip(mask, completions, strict=True):
        if completion.media:
            start = _first_picture(completion)
            row[start : len(completion.token_ids)] = sampled_mask(completion)[start:]
    return mask


def _first_picture(completion: Completion) -> int:
    """The tokens before the span of the first picture."""
    before = 0
    for span in completion.spans:
        if span.media:
            break
        before += span.tokens
    return before
