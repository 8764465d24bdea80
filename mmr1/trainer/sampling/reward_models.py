"""Reward models as reward functions: ``use: reward_model`` with the option ``path``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from mmr1.config import Config, RewardFunctionConfig
from mmr1.rewards import RewardFunction, RewardItem
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.loading import build_packed_model
from mmr1.trainer.models.scalar_model import (
    HEAD_FILE,
    PackedScalarModel,
    is_scalar_model,
    load_scalar_model,
    rewards_of,
)
from mmr1.types import Completion, Prompt, Reward, RolloutGroup
from mmr1.vision.build import family_of, media_cache
from mmr1.vision.features import FeatureCache

REWARD_MODEL = "reward_model"


def reward_models(config: Config) -> dict[str, RewardFunction]:
    """The reward models of ``rewards.functions`` by name, loaded.

    Raises:
        ValueError: A path is missing, or holds no reward model.
    """
    return {
        name: RewardModelReward(config, f"rewards.functions.{name}.options.path", function)
        for name, function in config.rewards.functions.items()
        if function.use == REWARD_MODEL or (function.use is None and name == REWARD_MODEL)
    }


class RewardModelReward:
    """Scores completions with a model that ``mmr1 rm`` trained; its tokenizer is the policy's."""

    def __init__(self, config: Config, key: str, function: RewardFunctionConfig) -> None:
        path = function.options.get("path")
        if set(function.options) != {"path"} or not isinstance(path, str):
            raise ValueError(f"a reward model takes one option, {key}: a checkpoint of mmr1 rm")
        if not is_scalar_model(path):
            raise ValueError(
                f"{key} '{path}' is no reward model (it has no {HEAD_FILE}); see mmr1 rm"
            )
        model = config.model.model_copy(update={"path": path, "lora": None})
        model_config = config.model_copy(update={"model": model})
        scalar = load_scalar_model(model, key).requires_grad_(False)
        self._family = family_of(model_config)
        media = media_cache(self._family, model_config)
        backbone = build_packed_model(
            model_config, scalar.backbone, ModelInputs(self._family, media), 1.0, FeatureCache()
        )
        self._scalar_model = PackedScalarModel(scalar, backbone, read="at")

    def score(self, items: Sequence[RewardItem], values: Sequence[Any]) -> list[Reward]:
        """The model's value at each completion's last token."""
        if not items:
            return []
        runs = [list(run) for _, run in groupby(items, key=lambda item: item.group)]
        rewards = rewards_of(self._scalar_model, [self._group(run) for run in runs])
        return [Reward(value) for value in rewards.tolist()]

    def check_gold(self, items: Sequence[RewardItem]) -> list[str | None]:
        """It reads no gold answer."""
        return [None] * len(items)

    def close(self) -> None:
        """Nothing to close."""

    def _group(self, items: Sequence[RewardItem]) -> RolloutGroup:
        first = items[0]
        ids = self._family.tokenizer(first.prompt, add_special_tokens=False)["input_ids"]
        prompt = Prompt(first.sample, first.prompt, tuple(ids))
        return RolloutGroup(prompt, tuple(_completion(item) for item in items))


def _completion(item: RewardItem) -> Completion:
    tokens = np.array(item.token_ids, dtype=np.int64)
    return Completion(tokens, np.zeros(len(tokens), np.float32), item.completion, item.truncated, 0)
