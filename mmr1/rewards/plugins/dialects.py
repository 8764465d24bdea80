"""Reward functions of mmr1's own form, and of TRL, EasyR1 and verl."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from mmr1.rewards.item import RewardItem
from mmr1.rewards.plugins.columns import (
    ROW,
    all_row_columns,
    bind,
    has_text_prompt,
    row_column,
)
from mmr1.rewards.plugins.styles import (
    Arguments,
    Call,
    Dialect,
    RewardStyle,
    Signature,
    module_of,
)
from mmr1.rewards.plugins.values import TOTALS


def _own(function: Callable[..., Any], options: Mapping[str, Any]) -> Dialect:
    arguments = bind(function, options)
    return Dialect("mmr1", "item", lambda items: ((), arguments(items[0])))


MMR1 = RewardStyle(
    "mmr1",
    ("def reward(completion, answer, **sample) -> float",),
    (Signature(("completion",), _own),),
)

# --- TRL, and R1-V, VLM-R1 and Video-R1 with it ------------------------------------------------


def trl_dialect(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    name: str = "TRL",
    of_texts: bool = False,
) -> Dialect:
    """Return the dialect of TRL, or of a project that calls functions as TRL does.

    Args:
        function: The user's function.
        options: Keyword options of the configuration.
        name: Name of the project.
        of_texts: Completions are always texts. In TRL they are messages where the prompt is.

    Raises:
        ValueError: If the function needs what only TRL's trainer has.
    """
    _check_trainer(inspect.signature(function).parameters)
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    is_required = {
        p.name: p.default is p.empty
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in options
    }

    def arguments(items: Sequence[RewardItem]) -> Arguments:
        columns: dict[str, Any] = {}
        if takes_all:
            rows = [all_row_columns(item) for item in items]
            names = dict.fromkeys(name for row in rows for name in row)
            columns = {name: [row.get(name) for row in rows] for name in names}
            for alias in ("solution", "problem", "problem_type", "completion_ids"):
                columns.setdefault(alias, [row_column(item, alias) for item in items])
            del columns["prompt"], columns["completion"]
        for name, required in is_required.items():
            if name not in ("prompts", "completions"):
                _add_column(columns, name, items, required)
        for name in ("image_grid_thw", "grid_thw"):
            if name in columns:
                columns[name] = [_one_grid(grids) for grids in columns[name]]
        texts = [of_texts or has_text_prompt(item) for item in items]
        if takes_all or "prompts" in is_required:
            columns["prompts"] = [
                i.prompt if text else _messages(i) for i, text in zip(items, texts, strict=True)
            ]
        columns["completions"] = [
            i.completion if text else _reply(i) for i, text in zip(items, texts, strict=True)
        ]
        return (), columns

    return Dialect(name, _call_mode(module_of(function)), arguments, skips=True)


def _check_trainer(parameters: Mapping[str, inspect.Parameter]) -> None:
    if "environments" in parameters:
        raise ValueError(_ENVIRONMENTS)
    for name in ("trainer_state", "log_extra", "log_metric"):
        if name in parameters and parameters[name].default is inspect.Parameter.empty:
            raise ValueError(
                f"it needs '{name}', which only TRL's trainer has; give the parameter a default"
            )


_ENVIRONMENTS = (
    "it reads 'environments', which live in separate processes; the built-in reward function "
    "environment is what TRL's environments give: their get_reward(), or else their attribute "
    "reward"
)


def _call_mode(module: ModuleType | None) -> Call:
    """The call mode that the file asks for: per group unless it says ``batch``."""
    said: Any = getattr(module, "REWARD_TYPE", "group")
    if said not in ("group", "batch"):
        raise ValueError(f"REWARD_TYPE = {said!r}: of TRL's form it can be 'group' or 'batch'")
    return "batch" if said == "batch" else "group"


def _one_grid(grids: Any) -> Any:
    """The grid of a sample's only picture, as VLM-R1 passes it; of several, the list."""
    return grids[0] if isinstance(grids, list | tuple) and len(grids) == 1 else grids


def _add_column(
    columns: dict[str, Any], name: str, items: Sequence[RewardItem], required: bool
) -> None:
    try:
        columns[name] = [row_column(item, name) for item in items]
    except KeyError:
        if required:
            raise ValueError(f"the records have no column '{name}'") from None


def _messages(item: RewardItem) -> list[dict[str, str]]:
    asked = item.sample.messages[: item.sample.demonstrated_from]
    return [{"role": message.role, "content": message.text} for message in asked]


def _reply(item: RewardItem) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": item.completion}]


TRL = RewardStyle(
    "TRL",
    ("def reward(completions, prompts=..., **columns) -> list[float | None]",),
    (Signature(("completions",), trl_dialect),),
    foreign={"environments": _ENVIRONMENTS},
)

# --- EasyR1 and verl ---------------------------------------------------------------------------


_OVERALL = ("overall",)
"""Its trainer reads the reward from this key, and from no other."""


def _easyr1(function: Callable[..., Any], options: Mapping[str, Any]) -> Dialect:
    """The dialect of EasyR1: mappings, of one completion or of all."""
    takes_all = "reward_inputs" in inspect.signature(function).parameters
    named = getattr(module_of(function), "REWARD_TYPE", "batch" if takes_all else "sequential")
    if named not in ("batch", "sequential"):
        raise ValueError(f"REWARD_TYPE = {named!r}: it can be 'batch' or 'sequential'")

    def row(item: RewardItem) -> dict[str, Any]:
        return {
            "response": item.completion,
            "response_length": len(item.token_ids),
            "ground_truth": item.sample.answer,
        }

    if named == "batch":
        return Dialect(
            "EasyR1", "batch", lambda items: (([row(item) for item in items],), {}), totals=_OVERALL
        )
    return Dialect("EasyR1", "item", lambda items: ((row(items[0]),), {}), totals=_OVERALL)


def _extra_info(item: RewardItem) -> Any:
    """The row's ``extra_info``; without one, that of verl's dataset scripts, and the columns."""
    meta = {name: value for name, value in item.sample.meta.items() if name != ROW}
    own = {**meta, **item.sample.meta.get(ROW, {})}
    if "extra_info" in own:
        return own["extra_info"]
    return {"index": item.sample.id, "question": item.sample.question, **own}


_FIELDS: dict[str, Callable[[RewardItem], Any]] = {
    "data_source": lambda i: row_column(i, "data_source"),
    "solution_str": lambda i: i.completion,
    "ground_truth": lambda i: i.sample.answer,
    "extra_info": _extra_info,
    "predict_str": lambda i: i.completion,
    "predict": lambda i: i.completion,
    "problem": lambda i: i.sample.question,
}


def _by_field(
    name: str, plural: bool = False, totals: tuple[str, ...] = TOTALS
) -> Callable[[Callable[..., Any], Mapping[str, Any]], Dialect]:
    """A dialect with one parameter per field: of one item, or in the plural of all items."""

    def build(function: Callable[..., Any], options: Mapping[str, Any]) -> Dialect:
        of_parameter = {f"{field}s" if plural else field: get for field, get in _FIELDS.items()}
        fields = {
            parameter: of_parameter[parameter]
            for parameter in inspect.signature(function).parameters
            if parameter in of_parameter and parameter not in options
        }

        def arguments(items: Sequence[RewardItem]) -> Arguments:
            if plural:
                return (), {n: [get(item) for item in items] for n, get in fields.items()}
            return (), {n: get(items[0]) for n, get in fields.items()}

        return Dialect(name, "batch" if plural else "item", arguments, totals=totals)

    return build


EASYR1 = RewardStyle(
    "EasyR1",
    (
        "def compute_score(reward_inputs: list[dict]) -> list[dict], or reward_input, or",
        "(predict_str, ground_truth), or (predicts, ground_truths)",
    ),
    (
        Signature(("reward_inputs",), _easyr1),
        Signature(("reward_input",), _easyr1),
        Signature(("predicts", "ground_truths"), _by_field("EasyR1", plural=True, totals=_OVERALL)),
        Signature(("predict_str", "ground_truth"), _by_field("EasyR1", totals=_OVERALL)),
    ),
)
VERL = RewardStyle(
    "verl",
    (
        "def compute_score(data_source, solution_str, ground_truth, extra_info), async or not,",
        "or (data_sources, solution_strs, ground_truths, extra_infos)",
    ),
    (
        Signature(("solution_strs", "ground_truths"), _by_field("verl", plural=True)),
        Signature(("solution_str", "ground_truth"), _by_field("verl")),
    ),
)
