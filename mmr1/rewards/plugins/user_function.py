"""A user's reward function: load it, find its dialect, call it in a separate process.

One that was given in Python, and cannot be sent to another process, runs in this one.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from types import TracebackType
from typing import Any

import yaml

from mmr1.lifetime import Deadline
from mmr1.rewards.item import (
    Job,
    RewardItem,
    add_example,
    group_means,
    reward_of_exception,
    without_accuracy,
    without_bytes,
)
from mmr1.rewards.kind import OwnReward, typed_settings
from mmr1.rewards.kind import reward as kind
from mmr1.rewards.plugins.columns import check_options, columns_read
from mmr1.rewards.plugins.styles import Call, Dialect, call, detect, reward_styles
from mmr1.rewards.plugins.values import rewards_of
from mmr1.rewards.sandbox.pool import Pool
from mmr1.rewards.sandbox.walls import GIB, Limits, plugin_paths, worker_environment
from mmr1.rewards.scoring import ScoringConfig
from mmr1.types import Reward

PLUGIN_LIMITS = Limits(memory=8 * GIB, open_files=256)
_MEDIA = {"media", "image", "images", "video", "videos"}
_PROBES = 4
_REMEDY = "; it ran isolated: set sandbox: null for a reward that writes, connects or needs a GPU"
_READING = (
    "; it ran isolated: name what it reads outside its own folder in "
    "rewards.NAME.sandbox.readable, or set sandbox: null"
)
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9_]{2,}\b")
_IMPORTED = Job("mmr1.rewards.plugins.user_function:warm_up", ())
_OF = "of"
"""A setting for this module, and not for the function unless it has such a parameter."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A user's function.

    Attributes:
        function: It, or an object of a class.
        dialect: How it is called.
        of: The reward before it whose value it gets as ``accuracy``.
        settings: Its keyword arguments.
    """

    function: Callable[..., Any]
    dialect: Dialect
    of: str | None
    settings: Mapping[str, Any]


@lru_cache(64)
def load(spec: str, options: str, style: str | None, call: Call | None) -> Loaded:
    """Load the function behind a spec.

    Args:
        spec: ``file.py:function``, a dotted path or an entry point. A class is made an object of,
            and that is called.
        options: The function's settings as YAML, so that the cache can tell them apart.
        style, call: Values of the configuration.

    Raises:
        ValueError: If the function cannot be imported, is no function, has the signature of no
            dialect, or does not take an option.
    """
    try:
        loaded = kind.installed.load(spec)
    except ValueError as error:
        raise ValueError(
            f"{error}{_denied_file(error.__cause__)}{_missing_package_hint(error)}"
        ) from error
    function = _instance(loaded, spec) if inspect.isclass(loaded) else loaded
    if not callable(function):
        raise ValueError(f"{spec} is a {type(function).__name__}, not a function")
    settings = dict(yaml.safe_load(options))
    ours = _OF not in inspect.signature(function).parameters
    of = settings.pop(_OF, None) if ours else None
    if (part := getattr(function, "part", None)) is not None:
        settings = typed_settings(part, settings)
    check_options(function, settings, spec)
    try:
        dialect = detect(function, settings, style, call, inspect.isclass(loaded))
        return Loaded(function, dialect, of, settings)
    except ValueError as error:
        raise ValueError(f"reward function '{spec}': {error}") from error


def _instance(cls: type, spec: str) -> Any:
    """An object of a class whose objects are called with completions."""
    if not any("__call__" in vars(base) for base in cls.__mro__):
        raise ValueError(f"{spec} is a class without __call__, not a function")
    try:
        return cls()
    except Exception as error:
        raise ValueError(
            f"{spec} is a class; making an object of it: {type(error).__name__}: {error}"
        ) from error


def _missing_package_hint(error: ValueError) -> str:
    """Advice for a package that files of a style import, where it is not installed."""
    cause = error.__cause__
    if not isinstance(cause, ModuleNotFoundError):
        return ""
    package = (cause.name or "").partition(".")[0]
    remedies = (style.packages.get(package) for style in reward_styles().values())
    return next((f"; {remedy}" for remedy in remedies if remedy), "")


def _denied_file(error: BaseException | None) -> str:
    """The file that a library could not open, if the system's error does not name it.

    OpenSSL's does not. The names that the calls have in hand are tried.
    """
    if not isinstance(error, PermissionError) or error.filename is not None:
        return ""
    frames: list[TracebackType] = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.insert(0, traceback)
        traceback = traceback.tb_next
    for frame in frames:
        for value in frame.tb_frame.f_locals.values():
            if isinstance(value, str | os.PathLike) and _closed(value):
                return f": {os.fspath(value)}"
    return ""


def _closed(path: str | os.PathLike[str]) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return False


def warm_up() -> None:
    """Import, in the zygote, this module, its imports and the styles, for every worker."""
    reward_styles()


def describe(spec: str, options: str, style: str | None, call: Call | None) -> dict[str, Any]:
    """Facts for the parent process about a function that only the workers import."""
    loaded = load(spec, options, style, call)
    parameters = set(inspect.signature(loaded.function).parameters)
    return {
        "call": loaded.dialect.call,
        "media": bool(_MEDIA & parameters),
        "scores": "scores" in parameters,
        "of": loaded.of,
        "columns": columns_read(loaded.function, loaded.settings),
    }


def run(
    spec: str,
    options: str,
    style: str | None,
    call_: Call | None,
    items: Sequence[RewardItem],
) -> list[Reward]:
    """One call with these items; a single item unless the dialect takes lists.

    Raises:
        Exception: Whatever the function raises.
    """
    loaded = load(spec, options, style, call_)
    dialect = loaded.dialect
    try:
        value = call(loaded.function, dialect, items, loaded.settings)
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
    except BaseException as error:
        if len(items) == 1:
            add_example(error, items[0])
        raise
    return rewards_of(value, len(items), dialect.call != "item", dialect.skips, dialect.totals)


async def _awaited(value: Any) -> Any:
    return await value


class PluginReward:
    """A user's function as a ``RewardFunction``, called in separate processes.

    Args:
        section: Its keys. ``of`` among its settings names a reward before this one, whose value the
            function gets as ``accuracy``.
        earlier: The names of the rewards before this one.
        scoring: For the workers and for the deadline of one without its own.

    Attributes:
        batch: It is called once for all items.
        reads_media: It asks for media.
        isolated: It runs behind the walls.
        columns: Names of the columns that it reads.
        reads_earlier: It stands on the values of the functions before it.

    Raises:
        ValueError: The function cannot be loaded or understood, or a wall is missing.
    """

    def __init__(self, section: OwnReward, earlier: Sequence[str], scoring: ScoringConfig) -> None:
        spec, isolated = section.type, section.sandbox is not None
        self._function = (spec, yaml.safe_dump(section.settings), section.style, section.call)
        self._pool = Pool(
            scoring.processes if isolated else 1,
            deadline=Deadline(section.timeout_s or scoring.timeout_s),
            warm=_IMPORTED,
            prepare=Job("mmr1.rewards.plugins.user_function:describe", self._function),
            limits=PLUGIN_LIMITS,
            readable=plugin_paths(spec, section.sandbox.readable if section.sandbox else ()),
            allow_weak=scoring.allow_weak_sandbox,
            walls=isolated,
        )
        self.isolated = isolated
        try:
            described = _started(self._pool, spec, isolated)
            self._of = described["of"]
            self.columns: Sequence[str] = described["columns"]
            if self._of is not None and self._of not in earlier:
                raise ValueError(
                    f"reward '{spec}': of={self._of} is not a reward before it "
                    f"({', '.join(earlier) or 'there is none'})"
                )
        except BaseException:
            self._pool.close()
            raise
        self._call_takes = described["call"]
        self.batch, self.reads_media = described["call"] == "batch", described["media"]
        self._scores = described["scores"]
        self.reads_earlier = self._scores or self._of is not None

    def score(
        self, items: Sequence[RewardItem], values: Sequence[Mapping[str, Reward]]
    ) -> list[Reward]:
        """One reward per item; none for a value that is based on an invalid one.

        A call with several items that fails is repeated item by item, so that one bad item does not
        cost the others their rewards. If the first few items fail too, the function itself is at
        fault and the rest is not tried.
        """
        rewards: dict[int, Reward] = {}
        if self.reads_earlier:
            items = self._with_earlier(items, values)
        if self._of is not None:
            for index, (item, earlier) in enumerate(zip(items, values, strict=True)):
                if item.earlier["accuracy"] is None:
                    rewards[index] = without_accuracy(self._of, earlier[self._of])
        calls = calls_of(items, self._call_takes, rewards)
        answers = self._call([[items[i] for i in call] for call in calls])
        failed: list[tuple[int, Reward]] = []
        for indices, answer in zip(calls, answers, strict=True):
            if len(answer) == len(indices):
                rewards.update(zip(indices, answer, strict=True))
            else:
                failed += [(index, answer[0]) for index in indices]
        if failed:
            rewards.update(self._repeated(items, _round_robin_by_prompt(items, failed)))
        return [rewards[index] for index in range(len(items))]

    def _with_earlier(
        self, items: Sequence[RewardItem], values: Sequence[Mapping[str, Reward]]
    ) -> list[RewardItem]:
        """The items with the results of earlier functions, as far as they are asked for."""
        earlier: list[dict[str, Any]] = [
            {"scores": {name: reward.value for name, reward in before.items()}}
            if self._scores
            else {}
            for before in values
        ]
        if self._of is not None:
            found = [before[self._of] for before in values]
            means = group_means([(i.group, r) for i, r in zip(items, found, strict=True)])
            for item, reward, named in zip(items, found, earlier, strict=True):
                named |= {"accuracy": reward.value, "group_accuracy": means.get(item.group)}
        return [replace(item, earlier=e) for item, e in zip(items, earlier, strict=True)]

    def _repeated(
        self, items: Sequence[RewardItem], failed: Sequence[tuple[int, Reward]]
    ) -> dict[int, Reward]:
        """Score the items of failed calls one by one; all of them if one of the first succeeds."""
        rewards = dict(failed)
        for part in (failed[:_PROBES], failed[_PROBES:]):
            indices = [index for index, _ in part]
            answers = self._call([[items[index]] for index in indices])
            rewards |= {i: answer[0] for i, answer in zip(indices, answers, strict=True)}
            if not any(rewards[index].valid for index in indices):
                break
        return rewards

    def check_gold(self, items: Sequence[RewardItem]) -> list[str | None]:
        """Accept every gold answer: only the function can read it."""
        return [None] * len(items)

    def close(self) -> None:
        self._pool.close()

    def _call(self, batches: Sequence[Sequence[RewardItem]]) -> list[list[Reward]]:
        if not self.reads_media:  # then it is not sent them
            batches = [
                [replace(item, sample=without_bytes(item.sample)) for item in batch]
                for batch in batches
            ]
        jobs = [
            Job(
                "mmr1.rewards.plugins.user_function:run",
                (*self._function, batch),
                cached=False,
                size=len(batch),
            )
            for batch in batches
        ]
        answers = self._pool.run(jobs)
        if self.isolated:
            return [[_with_remedy(r) if r.error else r for r in rewards] for rewards in answers]
        return answers


def calls_of(
    items: Sequence[RewardItem], takes: str, left_out: Collection[int] = ()
) -> list[list[int]]:
    """The indices of the items of each call."""
    asked = [index for index in range(len(items)) if index not in left_out]
    if takes == "item":
        return [[index] for index in asked]
    groups: dict[int, list[int]] = defaultdict(list)
    for index in asked:
        groups[items[index].group if takes == "group" else 0].append(index)
    return list(groups.values())


def _round_robin_by_prompt(
    items: Sequence[RewardItem], failed: Sequence[tuple[int, Reward]]
) -> list[tuple[int, Reward]]:
    """The first of each prompt, then the second of each, as a bad row spoils all of its own."""
    seen: Counter[int] = Counter()
    turns = []
    for index, reward in failed:
        group = items[index].group
        turns.append((seen[group], index, reward))
        seen[group] += 1
    return [(index, reward) for _, index, reward in sorted(turns, key=itemgetter(0))]


def _started(pool: Pool, spec: str, isolated: bool) -> dict[str, Any]:
    """Start the workers; returns the checked description of the function.

    Raises:
        ValueError: If the function cannot be loaded, or a wall is missing; the message names the
            function.
    """
    try:
        described = pool.start()
    except ValueError as error:
        named = spec.partition(":")[0] in str(error)
        message = str(error) if named else f"reward '{spec}': {error}"
        raise ValueError(message + (_remedy(message) if isolated else "")) from error
    kinds = {"call": str, "media": bool, "scores": bool, "of": str | None}
    if not isinstance(described, dict) or any(
        not isinstance(described.get(key), kind) for key, kind in kinds.items()
    ):
        raise ValueError(f"reward '{spec}': its process did not describe it")
    return described


def _with_remedy(reward: Reward) -> Reward:
    error = reward.error or ""
    return replace(reward, error=error + _remedy(error))


def _remedy(error: str) -> str:
    """Advice where a wall was in the way: EACCES is Landlock's, EPERM the filter's.

    Or where the error speaks of a variable of the environment that workers do not get.
    """
    if "[Errno 13]" in error:
        return _READING
    seen = worker_environment(os.environ)
    for name in _VARIABLE.findall(error):
        if name in os.environ and name not in seen:
            return f"; it ran isolated: {name} is not set there; set sandbox: null"
    blocked = ("PermissionError", "[Errno 1]", "MemoryError", "Operation not permitted")
    return _REMEDY if any(word in error for word in blocked) else ""


class CallableReward:
    """A closure, a lambda or any other function as a ``RewardFunction``; no pickling, no sandbox.

    It has the signatures of a plugin and runs in the thread that asks: no deadline ends it.

    Raises:
        ValueError: If the function's signature is that of no dialect, or the function is async.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        if inspect.iscoroutinefunction(function):
            raise ValueError(
                f"reward function '{name}' is async; write it into a file and name that: "
                "file.py:function"
            )
        try:
            self._dialect = detect(function, {})
        except ValueError as error:
            raise ValueError(f"reward function '{name}': {error}") from error
        self._function = function
        self.columns = columns_read(function, {})

    def score(
        self, items: Sequence[RewardItem], values: Sequence[Mapping[str, Reward]]
    ) -> list[Reward]:
        scores = ({name: reward.value for name, reward in before.items()} for before in values)
        asked = [replace(i, earlier={"scores": s}) for i, s in zip(items, scores, strict=True)]
        rewards: dict[int, Reward] = {}
        for indices in calls_of(items, self._dialect.call):
            answers = self._call([asked[index] for index in indices])
            rewards.update(zip(indices, answers, strict=True))
        return [rewards[index] for index in range(len(items))]

    def check_gold(self, items: Sequence[RewardItem]) -> list[str | None]:
        """Accept every gold answer: only the function can read it."""
        return [None] * len(items)

    def close(self) -> None:
        """Do nothing: it holds no resources."""

    def _call(self, items: Sequence[RewardItem]) -> list[Reward]:
        try:
            value = call(self._function, self._dialect, items, {})
        except Exception as error:
            if len(items) == 1:
                add_example(error, items[0])
            return [reward_of_exception(error)] * len(items)
        return rewards_of(
            value,
            len(items),
            self._dialect.call != "item",
            self._dialect.skips,
            self._dialect.totals,
        )
