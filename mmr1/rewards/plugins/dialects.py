"""Call reward functions that were written for other trainers.

A dialect is one trainer's signature, stated by ``style`` or recognised by the names of the
parameters alone. It turns items into the arguments that the function takes, and what the function
returns into one reward per item.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, Literal, NamedTuple, NoReturn

from mmr1.rewards.item import RewardItem, as_reward, invalid
from mmr1.rewards.plugins.columns import (
    ROW,
    all_row_columns,
    bind,
    has_text_prompt,
    row_column,
)
from mmr1.types import Reward, Status

_TOTALS = ("overall", "score", "reward")
SIGNATURES = """\
  mmr1       def reward(completion, answer, **sample) -> float
  TRL        def reward(completions, prompts=..., **columns) -> list[float | None]
  EasyR1     def compute_score(reward_inputs: list[dict]) -> list[dict], or reward_input, or
             (predict_str, ground_truth), or (predicts, ground_truths)
  verl       def compute_score(data_source, solution_str, ground_truth, extra_info), async or not,
             or (data_sources, solution_strs, ground_truths, extra_infos)
  OpenRLHF   def reward_func(queries, prompts, labels) -> dict, tensor or list
  ms-swift   class Reward(ORM): def __call__(self, completions, **columns) -> list[float]
  AReaL      def reward_fn(prompt, completions, prompt_ids, completion_ids, **columns) -> float"""

Call = Literal["item", "group", "batch"]
Style = Literal["mmr1", "trl", "ms-swift", "easyr1", "verl", "openrlhf", "areal"]
_Build = Callable[[Callable[..., Any], Mapping[str, Any]], "Dialect"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """A way to call a user's function.

    Attributes:
        name: The trainer's name, for messages.
        call: What one call takes: one item; or the items of one prompt, or all of them, and then it
            returns a value for each.
        arguments: Makes the positional and keyword arguments of a call from the items.
        skips: A None among its values is not a fault: the function is not for that row.
    """

    name: str
    call: Call
    arguments: Callable[[Sequence[RewardItem]], tuple[tuple[Any, ...], dict[str, Any]]]
    skips: bool = False


def detect(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    style: Style | None = None,
    call: Call | None = None,
) -> Dialect:
    """The dialect of a function.

    Args:
        function: The user's function.
        options: Keyword options of the configuration; parameters of these names are not columns.
        style: Whose signature it is; None: the names of its parameters tell.
        call: ``group`` or ``batch``, for a function that takes lists; None leaves its own way.

    Raises:
        ValueError: Its parameters are those of no dialect, or not of the ``style``; or it takes one
            completion and a ``call`` is asked for.
    """
    dialect = _dialect(function, options, style)
    if call is None:
        return dialect
    if dialect.call == "item":
        raise ValueError(
            f"call: {call} is for functions that take lists; this one has the form of "
            f"{dialect.name}, one completion per call"
        )
    return replace(dialect, call=call)


def _dialect(
    function: Callable[..., Any], options: Mapping[str, Any], style: Style | None
) -> Dialect:
    parameters = inspect.signature(function).parameters
    names = [n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if "completion" not in names:
        _check_trainer(parameters)
    known = [each for each in _SIGNATURES if style in (None, each.style)]
    for each in known:
        if set(each.required) <= set(names):
            return each.build(function, options)
    shown = ", ".join(names) or "none"
    if style is not None:
        asked = " or ".join(", ".join(each.required) for each in known)
        raise ValueError(f"style: {style} is for parameters {asked}; it has: {shown}")
    foreign = next((why for name, why in _FOREIGN.items() if name in names), "")
    raise ValueError(
        f"its parameters ({shown}) are those of no known dialect{foreign}; known are:\n{SIGNATURES}"
    )


def _check_trainer(parameters: Mapping[str, inspect.Parameter]) -> None:
    """Raise ValueError for what only another trainer's process can give."""
    if "environments" in parameters:
        raise ValueError(
            "it reads 'environments', which live in separate processes; the built-in reward "
            "function environment is what TRL's environments give: their get_reward(), or else "
            "their attribute reward"
        )
    for name in _OF_TRL_TRAINER:
        if name in parameters and parameters[name].default is inspect.Parameter.empty:
            raise ValueError(
                f"it needs '{name}', which only TRL's trainer has; give the parameter a default"
            )


_OF_TRL_TRAINER = ("trainer_state", "log_extra", "log_metric")
_FOREIGN = {
    "inputs": ": ms-swift's reward model plugins take 'inputs' with the trainer's own objects; "
    "write an ORM, or use the built-in reward_model",
    "infer_requests": ": ms-swift's ORMs of agents and its PRMs take 'infer_requests'; write "
    "__call__(self, completions, **columns)",
}


def call(
    function: Callable[..., Any],
    dialect: Dialect,
    items: Sequence[RewardItem],
    options: Mapping[str, Any],
) -> Any:
    """Call the function on these items; returns a coroutine if it is async."""
    positional, keywords = dialect.arguments(items)
    return function(*positional, **{**keywords, **options})


def rewards_of(value: Any, expected: int, batch: bool, skips: bool = False) -> list[Reward]:
    """A function's return value as one checked reward per item.

    A wrong number of values leaves every item of the call without a valid reward. A None among them
    is a row that a function which ``skips`` is not for.
    """
    if not batch:
        return [_from_value(value)]
    values = _as_list(value)
    if values is None or len(values) != expected:
        returned = type(value).__name__ if values is None else f"{len(values)} values"
        error = invalid(Status.ERROR, f"returned {returned} for {expected} completions")
        return [error] * expected
    return [_SKIPPED if skips and v is None else _from_value(v) for v in values]


_NO_LOGS = ("rewards", "scores", "extra_logs")
"""Of OpenRLHF's form; what stands beside them, as MM-Eureka's ``accuracy_rewards``, is logged."""
_SKIPPED = Reward(None, Status.SKIPPED, error="returned None: it is not for this row")


def _as_list(value: Any) -> list[Any] | None:
    if isinstance(value, Mapping) and "rewards" in value:
        rewards = _as_list(value["rewards"])
        logs = value.get("extra_logs") or {}
        named = {**value, **logs} if isinstance(logs, Mapping) else value
        columns = {k: _as_list(v) for k, v in named.items() if k not in _NO_LOGS}
        if rewards is None:
            return None
        extra = {  # a log called "score" is a log, and must not take the reward's place
            name: values
            for name, values in columns.items()
            if values is not None and len(values) == len(rewards) and name not in _TOTALS
        }
        return [
            {"score": reward, **{k: v[i] for k, v in extra.items()}}
            for i, reward in enumerate(rewards)
        ]
    if hasattr(value, "tolist"):
        value = value.tolist()
    return list(value) if isinstance(value, list | tuple) else None


def _from_value(value: Any) -> Reward:
    """A number, or a mapping with ``overall`` or ``score`` whose other numbers are logged."""
    if not isinstance(value, Mapping):
        return as_reward(value)
    totals = [value[key] for key in _TOTALS if key in value]
    if not totals:
        has = ", ".join(map(str, value)) or "nothing"
        return invalid(Status.ERROR, f"returned a dict without '{_TOTALS[0]}' (it has: {has})")
    reward = as_reward(totals[0])
    if not reward.valid:
        return reward
    components = {}
    for name, component in value.items():
        checked = as_reward(component)
        if name not in _TOTALS and checked.valid:
            components[str(name)] = checked.value
    return Reward(reward.value, reward.status, components)


# --- TRL, and R1-V, VLM-R1 and Video-R1 with it ------------------------------------------------


def _trl(
    function: Callable[..., Any], options: Mapping[str, Any], of_texts: bool = False
) -> Dialect:
    """The dialect of TRL, or of ms-swift, whose completions are always texts."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    is_required = {
        p.name: p.default is p.empty
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in options
    }

    def arguments(items: Sequence[RewardItem]) -> tuple[tuple[Any, ...], dict[str, Any]]:
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

    name = "ms-swift" if of_texts else "TRL"
    return Dialect(name, _call_mode(_module_of(function)), arguments, skips=True)


def _module_of(function: Callable[..., Any]) -> ModuleType | None:
    code = function if inspect.isfunction(function) else type(function).__call__
    return inspect.getmodule(code)


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


# --- AReaL -------------------------------------------------------------------------------------


def _areal(function: Callable[..., Any], options: Mapping[str, Any]) -> Dialect:
    """The dialect of AReaL: one completion per call, as the text ``completions``."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    optional = {p.name for p in parameters if p.default is not p.empty}

    def arguments(items: Sequence[RewardItem]) -> tuple[tuple[Any, ...], dict[str, Any]]:
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


# --- EasyR1, verl, OpenRLHF --------------------------------------------------------------------


def _easyr1(function: Callable[..., Any], options: Mapping[str, Any]) -> Dialect:
    """The dialect of EasyR1: mappings, of one completion or of all."""
    takes_all = "reward_inputs" in inspect.signature(function).parameters
    named = getattr(_module_of(function), "REWARD_TYPE", "batch" if takes_all else "sequential")
    if named not in ("batch", "sequential"):
        raise ValueError(f"REWARD_TYPE = {named!r}: it can be 'batch' or 'sequential'")

    def row(item: RewardItem) -> dict[str, Any]:
        return {
            "response": item.completion,
            "response_length": len(item.token_ids),
            "ground_truth": item.sample.answer,
        }

    if named == "batch":
        return Dialect("EasyR1", "batch", lambda items: (([row(item) for item in items],), {}))
    return Dialect("EasyR1", "item", lambda items: ((row(items[0]),), {}))


def _openrlhf(function: Callable[..., Any], options: Mapping[str, Any]) -> Dialect:
    def arguments(items: Sequence[RewardItem]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        queries = [item.prompt + item.completion for item in items]
        return (queries, [i.prompt for i in items], [i.sample.answer for i in items]), {}

    return Dialect("OpenRLHF", "batch", arguments)


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


def _by_field(name: str, plural: bool = False) -> _Build:
    """A dialect with one parameter per field: of one item, or in the plural of all items."""

    def build(function: Callable[..., Any], options: Mapping[str, Any]) -> Dialect:
        of_parameter = {f"{field}s" if plural else field: get for field, get in _FIELDS.items()}
        fields = {
            parameter: of_parameter[parameter]
            for parameter in inspect.signature(function).parameters
            if parameter in of_parameter and parameter not in options
        }

        def arguments(items: Sequence[RewardItem]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            if plural:
                return (), {n: [get(item) for item in items] for n, get in fields.items()}
            return (), {n: get(items[0]) for n, get in fields.items()}

        return Dialect(name, "batch" if plural else "item", arguments)

    return build


def _own(function: Callable[..., Any], options: Mapping[str, Any]) -> Dialect:
    arguments = bind(function, options)
    return Dialect("mmr1", "item", lambda items: ((), arguments(items[0])))


class _Signature(NamedTuple):
    """The parameters that a dialect has at the least, and what makes it of a function."""

    style: Style
    required: tuple[str, ...]
    build: _Build


_SIGNATURES = (
    _Signature("mmr1", ("completion",), _own),
    _Signature("areal", ("prompt", "completions"), _areal),
    _Signature("trl", ("completions",), _trl),
    _Signature("easyr1", ("reward_inputs",), _easyr1),
    _Signature("easyr1", ("reward_input",), _easyr1),
    _Signature("openrlhf", ("queries", "prompts", "labels"), _openrlhf),
    _Signature("verl", ("solution_strs", "ground_truths"), _by_field("verl", plural=True)),
    _Signature("verl", ("solution_str", "ground_truth"), _by_field("verl")),
    _Signature("easyr1", ("predicts", "ground_truths"), _by_field("EasyR1", plural=True)),
    _Signature("easyr1", ("predict_str", "ground_truth"), _by_field("EasyR1")),
    _Signature("ms-swift", ("completions",), partial(_trl, of_texts=True)),
)
"""The first whose parameters a function has is taken, where no style is stated."""
