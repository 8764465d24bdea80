"""Columns: the values that a reward function gets by the names of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
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
    "token_ids": lambda i: tuple(i.token_ids),
    "truncated": lambda i: i.truncated,
    "group": lambda i: i.group,
    "media": lambda i: i.sample.media,
    "media_sizes": lambda i: i.media_sizes,
    "original_sizes": lambda i: tuple(m.size for m in i.sample.media),
    "image_path": lambda i: [str(m.path) for m in i.sample.media if m.path is not None],
    "image_grid_thw": lambda i: i.grid_thw,
    "messages": lambda i: list(i.messages) or [{"role": "assistant", "content": i.completion}],
    "tool_calls": lambda i: list(i.tool_calls),
    "environment_reward": lambda i: i.environment_reward,
    "model_space": lambda i: i.model_space,
}
# Other frameworks' names for the same columns; a column of the record wins over these.
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


EARLIER = ("scores", "accuracy", "group_accuracy")
"""Parameters of a plugin that stands on other reward functions."""
ROW = "row"
"""Key of ``Sample.meta``: columns of another project's row as they were before it was read."""


def has_text_prompt(item: RewardItem) -> bool:
    """True if the prompt of the item's row was a text, and no list of messages.

    TRL gives a reward function texts then, and messages otherwise.
    """
    return isinstance(item.sample.meta.get(ROW, {}).get("prompt"), str)


def column(item: RewardItem, name: str) -> Any:
    """One column of an item. Raises KeyError when it has no such column.

    The record's win over ours, except over ``completion`` and ``answer``; and those that the row
    had under the names of another project over :data:`ALIASES`.
    """
    if name in item.earlier:
        return item.earlier[name]
    if name in ("completion", "answer"):
        return COLUMNS[name](item)
    if name in item.sample.meta:
        return item.sample.meta[name]
    if name in COLUMNS:
        return COLUMNS[name](item)
    own = item.sample.meta.get(ROW, {})
    return own[name] if name in own else COLUMNS[ALIASES[name]](item)


def row_column(item: RewardItem, name: str) -> Any:
    """One column of an item like :func:`column`, with the original row's values first."""
    own = item.sample.meta.get(ROW, {})
    return own[name] if name in own and name not in item.earlier else column(item, name)


def all_columns(item: RewardItem) -> dict[str, Any]:
    """Every column by name, each as :func:`column` gives it."""
    meta = dict(item.sample.meta)
    own = meta.pop(ROW, {})
    for name in ("completion", "answer"):
        meta.pop(name, None)
    standard = {name: get(item) for name, get in COLUMNS.items()}
    return {**own, **standard, **meta, **item.earlier}


def all_row_columns(item: RewardItem) -> dict[str, Any]:
    """Every column by name, each as :func:`row_column` gives it."""
    return {**all_columns(item), **item.sample.meta.get(ROW, {}), **item.earlier}


def check_options(function: Callable[..., Any], options: Mapping[str, Any], name: str) -> None:
    """Check the options against the function's signature; ``name`` is for messages.

    A function with ``**columns`` takes any, unless it is nearly the name of a parameter.

    Raises:
        ValueError: The function does not take an option, or a required one is missing.
    """
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        is_required = (
            parameter.kind is parameter.KEYWORD_ONLY
            and parameter.default is parameter.empty
            and parameter.name not in EARLIER
        )
        if is_required and parameter.name not in options:
            raise ValueError(f"reward function '{name}' needs the setting '{parameter.name}'")
    names = [n for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD and n not in COLUMNS]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for option in options:
        if option in parameters or (takes_any and not get_close_matches(option, names, 1, 0.8)):
            continue
        raise ValueError(
            f"reward function '{name}' has no setting '{option}'{suggest(option, names)}; "
            f"it has: {', '.join(names) or 'none'}"
        )


def columns_read(function: Callable[..., Any], options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the columns that a function's parameters ask for."""
    parameters = [p for n, p in inspect.signature(function).parameters.items() if n not in options]
    named = [
        p.name
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        and (p.default is p.empty or p.name in COLUMNS or p.name in ALIASES)
    ]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return (*named, *(["every other column"] if takes_all else []))


def bind(
    function: Callable[..., Any], options: Mapping[str, Any]
) -> Callable[[RewardItem], dict[str, Any]]:
    """A function that makes the keyword arguments of mmr1's own signature from an item.

    A parameter receives the column of its name; ``**sample`` receives every column. Where the
    record has no such column, a parameter keeps its default; without one, ValueError names the
    record.
    """
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named_parameters = [
        p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    parameters_read = [
        (p.name, p.default is p.empty) for p in named_parameters if p.name not in options
    ]

    def arguments(item: RewardItem) -> dict[str, Any]:
        values = all_columns(item) if takes_all else {}
        for name, required in parameters_read:
            try:
                values[name] = column(item, name)
            except KeyError:
                if required:
                    remedy = "; set of to the reward that gives it"
                    raise ValueError(
                        f"the record '{item.sample.id}' has no '{name}'"
                        f"{remedy if name in EARLIER else ''}"
                    ) from None
        return {**values, **options}

    return arguments
