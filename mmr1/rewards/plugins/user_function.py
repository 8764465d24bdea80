"""A user's reward function: load it, find its dialect, call it in the sandbox or here."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import yaml

from mmr1.deadline import Deadline
from mmr1.rewards.builtin import REWARDS
from mmr1.rewards.item import Job, RewardItem, invalid, reward_of_exception, without_bytes
from mmr1.rewards.plugins.columns import check_options
from mmr1.rewards.plugins.dialects import Dialect, call, detect, rewards_of
from mmr1.rewards.sandbox.limits import GIB, Limits
from mmr1.rewards.sandbox.pool import START_S, Pool
from mmr1.rewards.sandbox.readable import plugin_paths
from mmr1.types import Reward, Status

PLUGIN_LIMITS = Limits(memory=8 * GIB, open_files=256)
_MEDIA = {"media", "image", "images", "video", "videos"}
_PROBES, _MAX_STUCK = 4, 8
_REMEDY = "; it ran isolated: set isolated: false for a reward that writes, connects or needs a GPU"
_READING = (
    "; it ran isolated: name what it reads outside its own folder in "
    "rewards.functions.NAME.readable"
)
_IMPORTED = Job("mmr1.rewards.plugins.user_function:imported", ())


@lru_cache(64)
def load(spec: str, options: str) -> tuple[Callable[..., Any], Dialect]:
    """The function behind a spec and its dialect.

    Args:
        spec: ``file.py:function``, a dotted path or an entry point.
        options: The function's options as YAML, so that the cache can tell them apart.

    Raises:
        ValueError: It cannot be imported, is no function, has the signature of no dialect or does
            not take an option.
    """
    function = REWARDS.load(spec)
    if not callable(function) or inspect.isclass(function):
        raise ValueError(f"{spec} is a {type(function).__name__}, not a function")
    keywords = dict(yaml.safe_load(options))
    conversational = keywords.pop("conversational", None)
    check_options(function, keywords, spec)
    try:
        return function, detect(function, keywords, conversational)
    except ValueError as error:
        raise ValueError(f"reward function '{spec}': {error}") from error


def imported() -> None:
    """What the zygote runs: this module and what it imports are then in every worker."""


def describe(spec: str, options: str) -> dict[str, Any]:
    """What the parent process must know of a function that only the workers import."""
    function, dialect = load(spec, options)
    return {
        "batch": dialect.batch,
        "media": bool(_MEDIA & set(inspect.signature(function).parameters)),
    }


def run(spec: str, options: str, items: Sequence[RewardItem]) -> list[Reward]:
    """One call with these items; a single item unless the dialect is a batch dialect.

    Raises:
        Exception: Whatever the function raises.
    """
    function, dialect = load(spec, options)
    keywords = {k: v for k, v in yaml.safe_load(options).items() if k != "conversational"}
    value = call(function, dialect, items, keywords)
    if inspect.isawaitable(value):
        value = asyncio.run(_awaited(value))
    return rewards_of(value, len(items), dialect.batch)


async def _awaited(value: Any) -> Any:
    return await value


class PluginReward:
    """A user's function as a ``RewardFunction``.

    Args:
        spec: ``file.py:function``, a dotted path or an entry point.
        options: Keyword options passed to the function.
        isolated: Run it in sandboxed worker processes. Otherwise it runs here in a thread; a call
            that hangs there is given up, but may keep running.
        workers: Worker processes of an isolated function.
        timeout_s: Deadline of one call, which for a batch function is that of the whole batch.
        start_timeout_s: Longest wait for a worker to import it.
        readable: Files and folders that it may read besides its own folder and Python's.
        allow_weak: Run it where a required wall of the sandbox is missing.

    Attributes:
        batch: It is called once for all items.
        reads_media: It asks for media.
        isolated: It runs in worker processes.

    Raises:
        ValueError: The function cannot be loaded or understood, or a wall is missing.
    """

    def __init__(
        self,
        spec: str,
        options: Mapping[str, Any],
        *,
        isolated: bool,
        workers: int,
        timeout_s: float,
        start_timeout_s: float = START_S,
        readable: Sequence[str] = (),
        allow_weak: bool = False,
    ) -> None:
        self._spec, self._options, self._timeout_s = spec, yaml.safe_dump(dict(options)), timeout_s
        self._pool: Pool | None = None
        self._stuck: list[threading.Thread] = []
        if isolated:
            self._pool = Pool(
                workers,
                deadline=Deadline(timeout_s),
                warm=_IMPORTED,
                prepare=Job("mmr1.rewards.plugins.user_function:describe", (spec, self._options)),
                limits=PLUGIN_LIMITS,
                readable=plugin_paths(spec, readable),
                start_s=start_timeout_s,
                allow_weak=allow_weak,
            )
            described = _started(self._pool, spec)
        else:
            described = describe(spec, self._options)
        self.batch, self.reads_media = described["batch"], described["media"]
        self.isolated = isolated

    def score(self, items: Sequence[RewardItem], values: Sequence[Any]) -> list[Reward]:
        """One reward per item.

        A batch call that fails is repeated item by item, so that one bad item does not cost the
        others their rewards. If the first few items fail too, the function itself is at fault and
        the rest is not tried.
        """
        if not items:
            return []
        if not self.batch:
            return [rewards[0] for rewards in self._call([[item] for item in items])]
        (rewards,) = self._call([items])
        if len(rewards) == len(items):
            return rewards
        probes = [single[0] for single in self._call([[item] for item in items[:_PROBES]])]
        if not any(reward.valid for reward in probes):
            return probes + rewards * (len(items) - len(probes))
        return probes + [single[0] for single in self._call([[i] for i in items[_PROBES:]])]

    def check_gold(self, items: Sequence[RewardItem]) -> list[str | None]:
        """Nothing is checked: only the function knows what its golds are."""
        return [None] * len(items)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def _call(self, batches: Sequence[Sequence[RewardItem]]) -> list[list[Reward]]:
        if self._pool is None:
            return [self._call_here(batch) for batch in batches]
        jobs = [
            Job(
                "mmr1.rewards.plugins.user_function:run",
                (self._spec, self._options, [self._light(item) for item in batch]),
                cached=False,
                size=len(batch),
            )
            for batch in batches
        ]
        return [[_with_remedy(r) for r in rewards] for rewards in self._pool.run(jobs)]

    def _call_here(self, batch: Sequence[RewardItem]) -> list[Reward]:
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) > _MAX_STUCK:
            raise ValueError(
                f"{len(self._stuck)} calls of reward function '{self._spec}' hang in this process; "
                "set isolated: true so that they can be ended"
            )
        answer: queue.SimpleQueue[list[Reward]] = queue.SimpleQueue()
        thread = threading.Thread(target=lambda: answer.put(self._attempt(batch)), daemon=True)
        thread.start()
        try:
            return answer.get(timeout=self._timeout_s)
        except queue.Empty:
            _interrupt(thread)
            self._stuck.append(thread)
            return [invalid(Status.TIMEOUT, f"no value in {self._timeout_s:g} s")]

    def _attempt(self, batch: Sequence[RewardItem]) -> list[Reward]:
        try:
            return run(self._spec, self._options, batch)
        except BaseException as error:  # SystemExit would otherwise end the thread in silence
            return [reward_of_exception(error)]

    def _light(self, item: RewardItem) -> RewardItem:
        """The item without encoded media, unless the function asks for media."""
        return item if self.reads_media else replace(item, sample=without_bytes(item.sample))


def _interrupt(thread: threading.Thread) -> None:
    """End a thread that loops in Python, which would slow this process down; C code continues."""
    exception = ctypes.py_object(SystemExit)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), exception)


def _started(pool: Pool, spec: str) -> dict[str, bool]:
    """Start the workers; what the function is, checked, for a plugin's process said so.

    Raises:
        ValueError: It cannot be loaded, or a wall is missing; the message names the function.
    """
    try:
        described = pool.start()
    except ValueError as error:
        named = spec.partition(":")[0] in str(error)
        message = str(error) if named else f"reward '{spec}': {error}"
        raise ValueError(message + _remedy(message)) from error
    keys = ("batch", "media")
    if not isinstance(described, dict) or any(type(described.get(k)) is not bool for k in keys):
        raise ValueError(f"reward '{spec}': its process did not say what it is")
    return described


def _with_remedy(reward: Reward) -> Reward:
    return replace(reward, error=reward.error + _remedy(reward.error)) if reward.error else reward


def _remedy(error: str) -> str:
    """What to change where a wall was in the way: EACCES is Landlock's, EPERM the filter's."""
    if "[Errno 13]" in error:
        return _READING
    blocked = ("PermissionError", "[Errno 1]", "MemoryError", "Operation not permitted")
    return _REMEDY if any(word in error for word in blocked) else ""
