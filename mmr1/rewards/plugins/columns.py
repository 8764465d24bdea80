"""What a reward function may ask for by the name of a parameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from mmr1.registry import suggest
from mmr1.rewards.item import RewardItem

COLUMNS: dict[str, Callable[[RewardItem], Any]] = {
    "completion": lambda i: i.completion,
    "answer": lambda i: i.sample.answer,
    "id": lambda i: i.sample.id,
    "task": lambda i: i.sample.task,
    "source": lambda i: i.sample.source,
    "question": lambda i: i.sample.question,
    "prompt": lambda i: i.prompt,
    "token_ids": lambda i: i.token_ids,
    "truncated": lambda i: i.truncated,
    "group": lambda i: i.group,
    "media": lambda i: i.sample.media,
    "media_sizes": lambda i: i.media_sizes,
    "original_sizes": lambda i: tuple(m.size for m in i.sample.media),
    "image_path": lambda i: [str(m.path) for m in i.sample.media if m.path is not None],
    "image_grid_thw": lambda i: i.grid_thw,
}
# What other frameworks call the same things; a column of the record wins over these.
ALIASES = {
    "solution": "answer",
    "ground_truth": "answer",
    "gold": "answer",
    "label": "answer",
    "problem_type": "task",
    "data_type": "task",
    "data_source": "source",
    "problem": "question",
    "response": "completion",
    "solution_str": "completion",
    "predict_str": "completion",
    "completion_ids": "token_ids",
    "video_path": "image_path",
    "grid_thw": "image_grid_thw",
}


def column(item: RewardItem, name: str) -> Any:
    """One column of an item. Raises KeyError when it has no such column."""
    if name in ("completion", "answer"):
        return COLUMNS[name](item)
    if name in item.sample.meta:
        return item.sample.meta[name]
    return COLUMNS[ALIASES.get(name, name)](item)


def all_columns(item: RewardItem) -> dict[str, Any]:
    """Every column of an item by its name; the record's own columns win, except the answer."""
    standard = {name: get(item) for name, get in COLUMNS.items()}
    own = {k: v for k, v in item.sample.meta.items() if k not in ("completion", "answer")}
    return {**standard, **own}


def check_options(function: Callable[..., Any], options: Mapping[str, Any], who: str) -> None:
    """Refuse options that the function does not take, and the lack of one that it needs.

    Raises:
        ValueError: Naming the option and what there is.
    """
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        needed = parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
        if needed and parameter.name not in options:
            raise ValueError(f"reward '{who}' needs the option '{parameter.name}'")
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name in options:
        if name not in parameters:
            known = [n for n in parameters if n not in COLUMNS]
            raise ValueError(
                f"reward '{who}' has no option '{name}'{suggest(name, known)}; "
                f"it has: {', '.join(known) or 'none'}"
            )


def bind(
    function: Callable[..., Any], options: Mapping[str, Any]
) -> Callable[[RewardItem], dict[str, Any]]:
    """The keyword arguments of mmr1's own dialect: what the signature names, and nothing else.

    ``**sample`` receives every column. A parameter with a default keeps it where the record has no
    such column; one without is an error of the record (KeyError, then).
    """
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    wanted = [(p.name, p.default is p.empty) for p in named if p.name not in options]

    def arguments(item: RewardItem) -> dict[str, Any]:
        found = all_columns(item) if takes_all else {}
        for name, required in wanted:
            try:
                found[name] = column(item, name)
            except KeyError:
                if required:
                    raise ValueError(f"the record '{item.sample.id}' has no '{name}'") from None
        return {**found, **options}

    return arguments
