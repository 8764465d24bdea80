"""A reward model of steps, as ``mmr1 rm`` trains it: the chance that each step is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from mmr1.config import Config
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.loading import build_packed_model
from mmr1.trainer.models.scalar_model import (
    PackedScalarModel,
    is_scalar_model,
    load_scalar_model,
    supervision_of,
)
from mmr1.trainer.sampling.step_ends import step_ends, token_at
from mmr1.types import RolloutGroup, ScoredGroup
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache

StepChances = tuple[tuple[int, float], ...]
"""For each step of a completion the index of its last token and the chance that it is right."""


class ProcessRewardModel:
    """Judges the steps of completions; its tokenizer is the policy's.

    Raises:
        ValueError: There is no reward model of steps at ``path``; names ``key``.
    """

    def __init__(
        self, config: Config, key: str, path: str, family: ModelFamily, media: MediaCache
    ) -> None:
        if not is_scalar_model(path) or supervision_of(path).kind != "process":
            raise ValueError(
                f"{key} '{path}' is no reward model of steps; train one with mmr1 rm and "
                "rm.type=process"
            )
        self._separator = supervision_of(path).step_separator
        self._decode = partial(family.tokenizer.decode, skip_special_tokens=True)
        model = config.model.changed(path=path, lora=None)
        scalar = load_scalar_model(model, key).requires_grad_(False)
        inputs = ModelInputs(family, media)
        backbone = build_packed_model(config, scalar.backbone, inputs, 1.0, FeatureCache())
        self._scalar_model = PackedScalarModel(scalar, backbone, read="at")

    def steps(self, groups: Sequence[RolloutGroup]) -> list[StepChances]:
        """Of each completion, in group order. A blank completion has no step."""
        chances = self._scalar_model.group_values(groups).sigmoid()
        completions = [completion for group in groups for completion in group.completions]
        return [
            tuple(
                (token, float(row[token]))
                for end in step_ends(completion.text, self._separator)
                for token in [token_at(completion, end, self._decode)]
            )
            for completion, row in zip(completions, chances, strict=True)
        ]

    def score(self, scored: Sequence[ScoredGroup]) -> list[ScoredGroup]:
        """The same groups with their ``steps``; a step's reward is its chance."""
        steps = iter(self.steps([s.group for s in scored]))
        return [replace(s, steps=tuple(next(steps) for _ in s.group.completions)) for s in scored]
