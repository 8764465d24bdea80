"""AReaL's functions: one completion per call, as the text ``completions``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from mmr1.rewards.item import RewardItem
from mmr1.rewards.plugins.columns import all_row_columns, row_column
from mmr1.rewards.plugins.styles import Arguments, Dialect, RewardStyle, Signature


def _dialect(function: Callable[..., Any], options: Mapping[str, Any]) -> Dialect:
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    optional = {p.name for p in parameters if p.default is not p.empty}

    def arguments(items: Sequence[RewardItem]) -> Arguments:
        (item,) = items
        given = {
            "prompt": item.prompt,
            "completions": item.completion,
            "prompt_ids": _PromptIds(),
            "completion_ids": list(item.token_ids),
        }
        columns = all_row_columns(item) if takes_all else {}
        for name in names:
            if name in given or name in options:
                continue
            try:
                columns[name] = row_column(item, name)
            except KeyError:
                if name not in optional:
                    raise ValueError(f"the record '{item.sample.id}' has no '{name}'") from None
        columns.pop("completion", None)
        known = {n: v for n, v in given.items() if takes_all or n in names}
        return (), {**columns, **known}

    return Dialect("AReaL", "item", arguments)


class _PromptIds:
    """What stands for ``prompt_ids``: only a function that reads them does without a reward."""

    def _refuse(self, *_: object) -> NoReturn:
        raise ValueError(
            "it reads 'prompt_ids' as AReaL gives them; a reward function here gets the prompt as "
            "text only, in 'prompt'"
        )

    __len__ = __iter__ = __getitem__ = __contains__ = __bool__ = __getattr__ = _refuse


STYLE = RewardStyle(
    "AReaL",
    ("def reward_fn(prompt, completions, prompt_ids, completion_ids, **columns) -> float",),
    (Signature(("prompt", "completions"), _dialect),),
)
