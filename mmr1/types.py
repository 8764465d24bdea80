"""The frozen dataclasses that flow through mmr1, in the order in which they flow.

``Sample -> Prompt -> RolloutGroup -> ScoredGroup -> Experience -> StepStats``

Every other package of mmr1 imports this module, so it imports nothing but the standard library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:  # reward workers import this module and must stay light
    import numpy as np
    import torch

T = TypeVar("T")

MediaKind = Literal["image", "video"]


def quickly_pickled(cls: type[T]) -> type[T]:
    """A dataclass whose pickling does not look its fields up anew for every object."""
    names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    assert len(names) > 1  # of one, attrgetter gives the value itself
    values = attrgetter(*names)

    def get_state(self: T) -> Any:
        return values(self)

    def set_state(self: T, state: Sequence[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    cls.__getstate__ = get_state  # type: ignore[assignment]
    cls.__setstate__ = set_state  # type: ignore[attr-defined]
    return cls


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text inside a message."""

    text: str


@dataclass(frozen=True, slots=True)
class MediaRef:
    """An image or a video that has not been decoded yet.

    Attributes:
        kind: ``"image"`` or ``"video"``.
        path: The file on disk, or None when the encoded bytes are in ``data``.
        data: The encoded bytes (PNG, MP4, ...), or None when they are in ``path``.
        size: Original ``(width, height)`` in pixels where the record states it.
        options: Video sampling (``fps``, ``start``, ``end``, ``frames``, ...) and pixel budgets for
            this reference alone; mostly empty.
    """

    kind: MediaKind
    path: Path | None = None
    data: bytes | None = field(default=None, repr=False)
    size: tuple[int, int] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> bytes:
        """The encoded bytes. Raises OSError when the file cannot be read."""
        if self.data is not None:
            return self.data
        assert self.path is not None, "a MediaRef has a path or bytes"
        return self.path.read_bytes()

    def digest(self) -> str:
        """SHA-256 of the encoded bytes and the options, which identifies the medium.

        A file is read once per process. It must not change during a run.
        """
        options = repr(sorted(self.options.items()))
        if self.path is not None:
            return _file_digest(self.path, options)
        return _digest(self.read(), options)

    def __str__(self) -> str:
        return str(self.path) if self.path is not None else f"<{self.kind} in the record>"


@lru_cache(maxsize=1_000_000)
def _file_digest(path: Path, options: str) -> str:
    return _digest(path.read_bytes(), options)


def _digest(data: bytes, options: str) -> str:
    return hashlib.sha256(data + options.encode()).hexdigest()


ContentPart = TextPart | MediaRef


@quickly_pickled
@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    ``role`` is ``system``, ``user``, ``assistant``, or ``tool``: what a tool or an environment
    answered to the assistant's turn before it.
    """

    role: str
    parts: tuple[ContentPart, ...]

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join([part.text for part in self.parts if isinstance(part, TextPart)])


def media_of(messages: Iterable[Message]) -> tuple[MediaRef, ...]:
    """The media of these messages, in the order of their placeholders."""
    return tuple([p for m in messages for p in m.parts if isinstance(p, MediaRef)])


@quickly_pickled
@dataclass(frozen=True, slots=True)
class Sample:
    """The canonical record: one question, its media and its gold answer.

    Attributes:
        id: Unique within a dataset.
        messages: The conversation so far; a final ``assistant`` message is a demonstration. If a
            ``tool`` message is before it, so are the turns since the last ``user`` message.
        answer: The gold answer, as the rewards read it (text, number, box list, ...).
        task: Task type, e.g. ``math``, ``choice``, ``count``, ``iou``; picks the ``auto`` reward.
        source: Name of the dataset it came from.
        meta: Every other column, for reward functions and reports.
    """

    id: str
    messages: tuple[Message, ...]
    answer: Any = None
    task: str | None = None
    source: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def media(self) -> tuple[MediaRef, ...]:
        """All media of the conversation, in the order of their placeholders."""
        return media_of(self.messages)

    @property
    def demonstrated_from(self) -> int:
        """Index of the first demonstrated message; the number of messages where none is."""
        if not self.messages or self.messages[-1].role != "assistant":
            return len(self.messages)
        first = len(self.messages) - 1
        while first >= 2 and self.messages[first - 1].role == "tool":
            first -= 1
            while first and self.messages[first].role == "tool":
                first -= 1
            while first and self.messages[first - 1].role == "assistant":
                first -= 1
        return first

    @property
    def shown(self) -> tuple[MediaRef, ...]:
        """The media that are not part of a demonstration, in the order of their placeholders."""
        return media_of(self.messages[: self.demonstrated_from])

    @property
    def question(self) -> str:
        """The text of the last user message."""
        return next((m.text for m in reversed(self.messages) if m.role == "user"), "")


@quickly_pickled
@dataclass(frozen=True, slots=True)
class Prompt:
    """A sample rendered for one model: its chat template applied, one placeholder per medium.

    ``text`` and ``token_ids`` contain each placeholder once. The processor and vLLM expand it to as
    many tokens as the medium has merged patches.

    Attributes:
        observed: Media that tools have shown since, where the prompt of a later turn holds the
            turns before it.
        since: Turns since then as the model reads them, one after another: the token ids of each,
            placeholders expanded, and the number of media that it shows.
        shown: The media before those, where a program wrote the messages; None: the sample's.
        opened: End of ``text`` that belongs to the completion, such as ``<think>``.
    """

    sample: Sample
    text: str
    token_ids: tuple[int, ...]
    observed: tuple[MediaRef, ...] = ()
    shown: tuple[MediaRef, ...] | None = None
    since: tuple[tuple[tuple[int, ...], int], ...] = ()
    opened: str = ""

    @property
    def media(self) -> tuple[MediaRef, ...]:
        """All media, in the order of their placeholders."""
        return (self.sample.shown if self.shown is None else self.shown) + self.observed


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the policy called.

    Attributes:
        name: Name of the tool; empty where there is none of the name, or what was written is not a
            call.
        arguments: Arguments as the policy wrote them.
        error: Why it failed, as the policy was told; None if it did not.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A run of tokens of a completion, by one author.

    Attributes:
        role: ``assistant``: the policy sampled them. ``tool``: the environment answered.
        tokens: Their number; the chat template's own are the environment's.
        text: Text of the tokens, without special tokens.
        media: Media that the environment showed, in the order of the placeholders.
        calls: The tools that the policy called in its turn.
        reward: Reward of the environment for this turn of the policy; None if it gives none.
        answers: The environment's answers as messages; none where they have the chat template's
            own tokens in them.
        fork: Whether a sequence of its own begins with it, behind the prompt: what stands before it
            in the completion is not read. A completion may hold several conversations.
    """

    role: Literal["assistant", "tool"]
    tokens: int
    text: str
    media: tuple[MediaRef, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    answers: tuple[Message, ...] = ()
    fork: bool = False
    reward: float | None = None


@quickly_pickled
@dataclass(frozen=True, slots=True)
class Support:
    """Ids that the sampler kept for each token of a sequence of R tokens, all together.

    Attributes:
        ids: ``[sum(sizes)]`` int32, the ids of one token after those of another.
        sizes: ``[R]`` int32, the number of ids of each token. 0: nothing was cut there, or the
            token was not sampled.
    """

    ids: np.ndarray
    sizes: np.ndarray


@quickly_pickled
@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled completion: one turn of the policy, or a conversation with an environment.

    Attributes:
        token_ids: ``[R]`` int64, with the end-of-sequence token if it was sampled. Placeholders of
            observed media are expanded.
        logprobs: ``[R]`` float32, log-probabilities of those tokens under the sampling
            distribution of the engine (temperature applied); 0 for tokens that were not sampled.
        text: Decoded, without special tokens; of a conversation the policy's last turn.
        truncated: True if a limit cut it off: of its length, its turns or its pictures.
        policy_version: Number of weight updates that the engine had received; the smallest, where
            the weights changed while it was sampled.
        versions: ``(version, tokens)`` in order where they did: how many tokens each sampled. Empty
            where ``policy_version`` sampled them all.
        routed_experts: Experts of a mixture that the engine computed with: of the P tokens of the
            prompt ``[P, L, k]``, which may be one array for the whole group, and of all tokens but
            the last ``[R - 1, L, k]``; L layers, 0 in those without experts. None where they are
            not known.
        support: Ids that the sampler kept for each token, where top-p, top-k or min-p cut the
            distribution: ``logprobs`` are over these. None where all were kept.
        view: Options of the prompt's media under which it was sampled, where they were shown in
            another way (``rollout.views``); empty: as the prompt has them.
        spans: Spans of the policy's turns and the environment's, in order, from the first turn of
            the policy to its last. Empty without an environment: the policy sampled them all.
        reward: Reward of the environment for the whole conversation; None if it gives none.
        failure: How the environment broke, and why; None if it did not. Such a completion has no
            valid reward.
    """

    token_ids: np.ndarray
    logprobs: np.ndarray
    text: str
    truncated: bool
    policy_version: int
    spans: tuple[Span, ...] = ()
    reward: float | None = None
    failure: tuple[Status, str] | None = None
    versions: tuple[tuple[int, int], ...] = ()
    routed_experts: tuple[np.ndarray, np.ndarray] | None = None
    view: Mapping[str, float] = field(default_factory=dict)
    support: Support | None = None

    @property
    def media(self) -> tuple[MediaRef, ...]:
        """The media that the environment showed, in the order of the placeholders."""
        return tuple(medium for span in self.spans for medium in span.media)

    @property
    def sequences(self) -> tuple[tuple[Span, ...], ...]:
        """The spans of each sequence that the model reads; one, unless the completion forks."""
        starts = [n for n, span in enumerate(self.spans) if span.fork or n == 0]
        ends = [*starts[1:], len(self.spans)]
        return tuple(self.spans[start:end] for start, end in zip(starts, ends, strict=True))

    @property
    def sampled_tokens(self) -> int:
        """The number of tokens that the policy sampled."""
        if not self.spans:
            return len(self.token_ids)
        return sum(span.tokens for span in self.spans if span.role == "assistant")

    @property
    def turns(self) -> int:
        """The number of the policy's turns."""
        return sum(span.role == "assistant" for span in self.spans) or 1

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(call for span in self.spans for call in span.calls)


@quickly_pickled
@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """The ``n`` completions of one prompt (``n`` is the group size)."""

    prompt: Prompt
    completions: tuple[Completion, ...]


class Status(StrEnum):
    """The outcome of scoring a completion. Only ``OK``, ``NO_ANSWER`` and ``UNREAD`` have a number.

    ``NO_ANSWER`` is a completion without an answer, ``UNREAD`` one whose answer has no reading of
    the type that the gold answer asks for; both score 0. ``SKIPPED`` is that of a function that is
    not for this row: the others are summed without it.
    """

    OK = "ok"
    NO_ANSWER = "no_answer"
    UNREAD = "unread"
    BAD_GOLD = "bad_gold"
    TIMEOUT = "timeout"
    ERROR = "error"
    KILLED = "killed"
    SKIPPED = "skipped"

    @property
    def valid(self) -> bool:
        return self._value_ in _VALID


_VALID = frozenset({Status.OK.value, Status.NO_ANSWER.value, Status.UNREAD.value})


@quickly_pickled
@dataclass(frozen=True, slots=True)
class Reward:
    """The reward of one completion.

    Attributes:
        value: The number, or None without a valid reward. A failure is never 0.
        status: The outcome of scoring.
        components: The unweighted value of each reward function; None if it is not valid or if it
            skipped the row.
        error: Fault in one line, if the status is not valid; the reason why the answer could not be
            read, if it is ``UNREAD``.
        unread: Names of the reward functions that could not read the answer.
    """

    value: float | None
    status: Status = Status.OK
    components: Mapping[str, float | None] = field(default_factory=dict)
    error: str | None = None
    unread: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        is_valid = self.status._value_ in _VALID  # made for every completion several times
        assert (self.value is not None) == is_valid, (self.value, self.status)

    @property
    def valid(self) -> bool:
        return self.value is not None


@quickly_pickled
@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A rollout group and the reward of each of its completions, in the same order.

    Attributes:
        greedy: Reward of the prompt's greedy completion, if it is the algorithm's baseline.
        steps: ``(index of the last token, reward)`` of each step of each completion, if the
            algorithm learns from steps.
    """

    group: RolloutGroup
    rewards: tuple[Reward, ...]
    greedy: Reward | None = None
    steps: tuple[tuple[tuple[int, float], ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Inputs of the loss for the tokens of B sequences, ``[B, R]`` each, R the longest completion.

    Attributes:
        mask: Bool, True for tokens that count in the loss: of completions with a valid reward those
            that the policy sampled.
        advantages: Float32, 0 where the mask is False.
        loss_weights: Float32. They are normalised over the mini-batch, or the whole rollout, so the
            gradients of micro-batches add up.
        rollout_logprobs: Under the engine that sampled.
        other_view: Bool, tokens that the engine sampled under another view of the pictures than
            that of the loss: the two log-probs do not compare. None where none was.
        old_logprobs: Under the policy before the update. None with a single update per rollout:
            they are then the update's own, detached, and no forward pass computes them.
        ref_logprobs: Under the reference policy; None without a KL term, or with the exact KL,
            which the update measures.
        chosen: Bool, the tokens that the loss treats in another way; None for an algorithm that
            chooses none.
        masked_logprobs: Under the policy before the update, with the pictures masked; NaN for a
            prompt without one. None without ``algorithm.perception``.
        after_picture: Bool, tokens after the first picture that an environment showed; None where
            it showed none.
        versions: Int64, of the weights that sampled each token; None where none changed on the way.
        kept: Int64, the number of ids that the engine kept for each token, 0 where all; None where
            it kept all everywhere.
    """

    mask: torch.Tensor
    advantages: torch.Tensor
    loss_weights: torch.Tensor
    rollout_logprobs: torch.Tensor
    old_logprobs: torch.Tensor | None = None
    ref_logprobs: torch.Tensor | None = None
    chosen: torch.Tensor | None = None
    masked_logprobs: torch.Tensor | None = None
    after_picture: torch.Tensor | None = None
    versions: torch.Tensor | None = None
    other_view: torch.Tensor | None = None
    kept: torch.Tensor | None = None

    def select(
        self, rows: torch.Tensor, width: int | None = None, device: torch.device | None = None
    ) -> TokenBatch:
        """Some sequences, cut to ``width`` tokens, on a device."""
        own: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, values in own.items():
            if values is not None:
                own[name] = values[rows, :width].to(device, non_blocking=True)
        return TokenBatch(**own)


@dataclass(frozen=True, slots=True)
class CriticTargets:
    """The critic's values, and its targets; ``[B, R]`` each.

    Attributes:
        values: Values of the states before the tokens.
        returns: The targets of these values.
    """

    values: torch.Tensor
    returns: torch.Tensor


@dataclass(frozen=True, slots=True)
class LossCoefficients:
    """Coefficients of the terms beside the policy loss, in one step."""

    kl: float = 0.0
    entropy: float = 0.0
    ptx: float = 0.0


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """Data of one optimizer step.

    Attributes:
        learning: ``[B]`` bool, its sequences whose gradient can be other than 0.
        demonstrations: Demonstrations of the PTX term.
    """

    learning: torch.Tensor
    demonstrations: tuple[RolloutGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class Experience:
    """The batch of one update: B sequences in rollout order, so that groups are contiguous.

    Attributes:
        groups: The scored groups: their prompts and tokens.
        tokens: Quantities of each token.
        mini_batches: One for each optimizer step of a pass over the batch.
        critic: None without a critic.
    """

    groups: tuple[ScoredGroup, ...]
    tokens: TokenBatch
    mini_batches: tuple[MiniBatch, ...]
    coefficients: LossCoefficients
    critic: CriticTargets | None = None

    def with_demonstrations(self, demonstrations: Sequence[RolloutGroup]) -> Experience:
        """The mini-batches are given demonstrations in turn."""
        every = len(self.mini_batches)
        return replace(
            self,
            mini_batches=tuple(
                replace(mini_batch, demonstrations=tuple(demonstrations[index::every]))
                for index, mini_batch in enumerate(self.mini_batches)
            ),
        )


@dataclass(frozen=True, slots=True)
class Metric:
    """A statistic of a step that is merged over micro-batches and ranks.

    Attributes:
        sum: Sum of the values, or the largest of them; a number, or a scalar tensor on its way.
        count: Number of values.
        reduce: How values become one: their mean, the largest, or the sum.
    """

    sum: Any
    count: Any = 1
    reduce: Literal["mean", "max", "sum"] = "mean"

    def merge(self, other: Metric) -> Metric:
        """Return the statistic of both sets of values."""
        total = max(self.sum, other.sum) if self.reduce == "max" else self.sum + other.sum
        return Metric(total, self.count + other.count, self.reduce)

    @property
    def value(self) -> float | None:
        """The number; None for a mean of no values, which was not measured."""
        if self.reduce != "mean":
            return float(self.sum)
        return float(self.sum / self.count) if self.count else None


def merge_metrics(rows: Iterable[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Merge metrics by name. A row may lack some."""
    merged: dict[str, Metric] = {}
    for row in rows:
        for name, metric in row.items():
            merged[name] = merged[name].merge(metric) if name in merged else metric
    return merged


StepStats = dict[str, float]
"""A line of ``metrics.jsonl``: slash-separated names of metrics to numbers."""
