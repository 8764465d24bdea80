"""Reward models as reward functions, and as judges of steps.

``type: reward_model`` with its ``path`` is a reward. By
``algorithm.advantage.step_rewards`` each step of a completion has a reward.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmr1.algorithms.advantages.process import ProcessAdvantage
from mmr1.config import Config
from mmr1.rewards import RewardFunction, RewardItem
from mmr1.rewards.builtin.elsewhere import RewardModelConfig
from mmr1.rewards.item import no_answer
from mmr1.trainer.forward.micro_batches import ProcessGroup
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.loading import LoadModel, build_packed_model, load_here
from mmr1.trainer.models.scalar_model import (
    HEAD_FILE,
    PackedScalarModel,
    at_the_end,
    is_scalar_model,
    supervision_of,
)
from mmr1.types import Completion, Prompt, Reward, RolloutGroup
from mmr1.vision.build import family_of, media_cache
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache

GroupValues = Callable[[Sequence[RolloutGroup]], torch.Tensor]
"""``[B, R]`` of the completions of groups: a reward model's number at each token."""

STEP_REWARDS = "algorithm.advantage.step_rewards"


def named_reward_models(config: Config) -> dict[str, str]:
    """The keys that name reward models, and their paths, which may not exist yet."""
    named = {_key(name): section.path for name, section in _reward_models(config)}
    advantage = config.algorithm.advantage
    if config.command == "eval" or not isinstance(advantage, ProcessAdvantage):
        return named
    if Path(advantage.step_rewards).is_dir():
        named[STEP_REWARDS] = advantage.step_rewards
    return named


def reward_model_paths(config: Config) -> dict[str, str]:
    """The reward models of a run, and for each the key that names it.

    Raises:
        ValueError: A path is missing, or holds no reward model.
    """
    for name, section in _reward_models(config):
        _check_path(_key(name), section.path)
    named = named_reward_models(config)
    if STEP_REWARDS in named:
        refuse_others_than_of_steps(named[STEP_REWARDS])
    return {path: key for key, path in named.items()}


def _reward_models(config: Config) -> list[tuple[str, RewardModelConfig]]:
    """The rewards that are reward models, by name."""
    return [(n, r) for n, r in config.rewards.items() if isinstance(r, RewardModelConfig)]


def _key(name: str) -> str:
    return f"rewards.{name}.path"


def _check_path(key: str, path: str) -> None:
    if not is_scalar_model(path):
        raise ValueError(
            f"{key} '{path}' is not a reward model (it has no {HEAD_FILE}); docs/preferences.md "
            "trains one"
        )


def build_reward_models(
    config: Config,
    family: ModelFamily | None = None,
    media: MediaCache | None = None,
    process_group: ProcessGroup | None = None,
    load: LoadModel = load_here,
) -> dict[str, PackedScalarModel]:
    """The reward models of a run by path; none is trained here.

    Args:
        family, media: Family and media of the policy. A reward model has its own.
        process_group: The ranks that compute together, if any.
        load: Where there are any, it spreads a model over them.
    """
    built = {}
    for path, key in reward_model_paths(config).items():
        own = reward_model_config(config, path)
        model = load(own.model, False, key, head=True)
        of_path = family_of(own)
        inputs = ModelInputs(of_path, media_cache(of_path, own))
        packed = build_packed_model(
            own, model.backbone, inputs, None, FeatureCache(), process_group
        )
        built[path] = PackedScalarModel(model, packed, read="at")
    return built


def reward_model_config(config: Config, path: str) -> Config:
    """The configuration with the reward model in the policy's place."""
    return config.changed(model=config.model.changed(path=path, lora=None))


def reward_models(config: Config, values: Mapping[str, GroupValues]) -> dict[str, RewardFunction]:
    """The reward models of ``rewards`` by name, as reward functions.

    Args:
        values: Values of each path.

    Raises:
        ValueError: ``reduce`` does not go with a reward model.
    """
    return {
        name: RewardModelReward(config, _key(name), section, values)
        for name, section in _reward_models(config)
    }


REDUCTIONS: dict[str, Callable[[list[float]], float]] = {
    "min": min,
    "product": math.prod,
    "last": itemgetter(-1),
}
"""A completion's value from the chances that its steps are right."""


class RewardModelReward:
    """Scores completions with a reward model, whose tokenizer is the policy's."""

    columns = ("prompt", "token_ids")

    def __init__(
        self,
        config: Config,
        key: str,
        section: RewardModelConfig,
        values: Mapping[str, GroupValues],
    ) -> None:
        path, reduce = section.path, section.reduce
        self._family = family_of(reward_model_config(config, path))
        of_steps = supervision_of(path).kind == "process"
        _check_reduction(key, reduce, of_steps)
        self._values, self._reduce = values[path], REDUCTIONS[reduce or "min"]
        self._steps = step_judge(path, self._family, values[path]) if of_steps else None

    def score(self, items: Sequence[RewardItem], values: Sequence[Any]) -> list[Reward]:
        """Each completion's value: at its last token, or from the probabilities of its steps.

        One without a step has no answer.
        """
        if not items:
            return []
        runs = [list(run) for _, run in groupby(items, key=lambda item: item.group)]
        return self._rewards([self._group(run) for run in runs])

    def check_gold(self, items: Sequence[RewardItem]) -> list[str | None]:
        """Accept every sample: it reads no gold answer."""
        return [None] * len(items)

    def close(self) -> None:
        """Do nothing: it holds no resources."""

    def _rewards(self, groups: Sequence[RolloutGroup]) -> list[Reward]:
        if self._steps is None:
            return [Reward(v) for v in at_the_end(self._values(groups), groups).tolist()]
        chances = [[chance for _, chance in steps] for steps in self._steps(groups)]
        return [Reward(self._reduce(own)) if own else no_answer() for own in chances]

    def _group(self, items: Sequence[RewardItem]) -> RolloutGroup:
        first = items[0]
        ids = self._family.tokenizer(first.prompt, add_special_tokens=False)["input_ids"]
        prompt = Prompt(first.sample, first.prompt, tuple(ids))
        return RolloutGroup(prompt, tuple(_completion(item) for item in items))


def _completion(item: RewardItem) -> Completion:
    tokens = np.array(item.token_ids, dtype=np.int64)
    return Completion(tokens, np.zeros(len(tokens), np.float32), item.completion, item.truncated, 0)


def _check_reduction(key: str, reduce: Any, of_steps: bool) -> None:
    if reduce is not None and not of_steps:
        raise ValueError(
            f"{key} is a reward model of whole completions, which has no steps; leave reduce out"
        )


Steps = tuple[tuple[int, float], ...]
"""For each step of a completion the index of its last token and its reward, or its chance to be
right."""


def refuse_others_than_of_steps(path: str) -> None:
    """Raises ValueError if there is no reward model of steps at the path of ``step_rewards``."""
    if not is_scalar_model(path) or supervision_of(path).kind != "process":
        raise ValueError(
            f"{STEP_REWARDS} '{path}' is not a reward model of steps; docs/preferences.md "
            "trains one"
        )


def step_judge(
    path: str, family: ModelFamily, values: GroupValues
) -> Callable[[Sequence[RolloutGroup]], list[Steps]]:
    """A judge of steps by a reward model, whose tokenizer is the policy's."""
    decode = family.chat.completion_text
    return partial(step_chances, values, supervision_of(path).step_separator, decode)


def step_chances(
    values: GroupValues, separator: str, decode: Decode, groups: Sequence[RolloutGroup]
) -> list[Steps]:
    """The probabilities of each completion's steps, in group order; none for a blank one."""
    completions = [completion for group in groups for completion in group.completions]
    judged: list[Steps] = []
    for completion, row in zip(completions, values(groups).sigmoid(), strict=True):
        ends = step_ends(completion.text, separator)
        tokens = [token_at(completion, end, decode) for end in ends]
        judged.append(tuple((token, float(row[token])) for token in tokens))
    return judged


Decode = Callable[[Sequence[int]], str]


def step_ends(text: str, separator: str) -> list[int]:
    """The number of characters up to the end of each step; blank steps do not count.

    >>> step_ends("one.\\n\\ntwo.", "\\n\\n")
    [4, 10]
    """
    ends, start = [], 0
    for step in text.split(separator):
        end = start + len(step)
        if step.strip():
            ends.append(end)
        start = end + len(separator)
    return ends


def token_at(completion: Completion, end: int, decode: Decode) -> int:
    """Index of the first token with which the text reaches ``end`` characters.

    A step that ends with the text takes the end-of-sequence token with it.

    Args:
        decode: Token ids to text, special tokens left out.
    """
    ids = completion.token_ids.tolist()
    if end >= len(completion.text):
        return len(ids) - 1
    return bisect_left(range(len(ids)), end, key=lambda i: len(decode(ids[: i + 1])))
