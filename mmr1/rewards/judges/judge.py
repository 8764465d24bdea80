"""A score from a model behind an OpenAI-compatible server, vLLM's own included."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmr1.rewards.builtin.judge import JudgeConfig
from mmr1.rewards.http.addresses import parse_address
from mmr1.rewards.http.post import Failure, JsonPost, LoopThread
from mmr1.rewards.item import RewardItem, invalid
from mmr1.rewards.judges.conversation import load_judge_template, messages
from mmr1.rewards.judges.replies import Reply, ReplyCache, read_chat_completion, read_verdict
from mmr1.types import Reward, Status

_REPLY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Question:
    """One question to the judge.

    Attributes:
        item: Item whose prompt it is about.
        completions: The template's variables.
        pays: Items that the verdict pays; with False it pays 1 - verdict.
    """

    item: int
    completions: Mapping[str, str]
    pays: tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The result of a question: a score, or why there is none."""

    score: float | None
    error: Reward | None = None
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class JudgeReward:
    """Scores completions by itself, against the gold answer, or against each other.

    Equal requests are asked once. A comparison is asked in both orders, because judges prefer a
    place. A completion has no valid reward where all that was asked about it failed. Components
    count what it cost: ``calls``, ``prompt_tokens``, ``completion_tokens``; replies from the cache
    cost nothing.

    Raises:
        ValueError: An address is none, or the environment lacks the key.
    """

    columns = ("question", "completion", "answer")

    def __init__(self, section: JudgeConfig) -> None:
        self._options = section
        self._template = load_judge_template(section.template_name)
        self._post = JsonPost(
            [parse_address(url) for url in section.urls],
            section.headers_with_key,
            retries=section.retries,
            timeout_s=section.timeout_s,
        )
        self._cache = ReplyCache(self._options.cache) if self._options.cache else None
        self._thread = LoopThread()

    def score(self, items: Sequence[RewardItem], values: Sequence[Any]) -> list[Reward]:
        """One reward per item, from 0 to 1."""
        questions = self._questions(items)
        verdicts = self._thread.run(self._ask_all(items, questions)) if questions else []
        found: dict[int, list[_Verdict]] = defaultdict(list)
        for question, verdict in zip(questions, verdicts, strict=True):
            for place, (index, direct) in enumerate(question.pays):
                score = verdict.score if direct or verdict.score is None else 1 - verdict.score
                free = _Verdict(score, verdict.error)  # its cost is counted once
                found[index].append(free if place else replace(verdict, score=score))
        sizes = Counter(item.group for item in items)
        return [
            _mean(found[i]) if found[i] else _unasked(sizes[item.group])
            for i, item in enumerate(items)
        ]

    def check_gold(self, items: Sequence[RewardItem]) -> list[str | None]:
        return [self._problem(item) for item in items]

    def close(self) -> None:
        self._thread.close(self._post.close)
        if self._cache is not None:
            self._cache.close()

    def _problem(self, item: RewardItem) -> str | None:
        """The reason why a sample cannot be judged, or None."""
        if self._options.against == "answer" and item.sample.answer is None:
            return "it has no answer to compare with; choose against=group, or drop the row"
        if self._options.images and any(m.kind != "image" for m in item.sample.media):
            return "a judge is shown images only; set images=false to judge the text alone"
        try:
            names = ("completion_a", "completion_b") if self._options.against else ("completion",)
            messages(self._template, item.sample, dict.fromkeys(names, ""), images=False)
        except ValueError as error:
            return str(error)
        return None

    def _questions(self, items: Sequence[RewardItem]) -> list[_Question]:
        against = self._options.against
        if against is None:
            return [
                _Question(i, {"completion": item.completion}, ((i, True),))
                for i, item in enumerate(items)
            ]
        if against == "answer":
            return [
                question
                for i, item in enumerate(items)
                for question in _both_orders(item.completion, str(item.sample.answer), i)
            ]
        return [
            question
            for i, j in _opponents(items, self._options.opponents)
            for question in _both_orders(items[i].completion, items[j].completion, i, j)
        ]

    async def _ask_all(
        self, items: Sequence[RewardItem], questions: Sequence[_Question]
    ) -> list[_Verdict]:
        places = asyncio.Semaphore(self._options.concurrency)
        running: dict[bytes, asyncio.Task[_Verdict]] = {}
        verdicts: list[_Verdict | asyncio.Task[_Verdict]] = []
        for question in questions:
            try:
                body = self._body(items[question.item], question)
            except (ValueError, TypeError) as error:
                verdicts.append(_Verdict(None, invalid(Status.ERROR, str(error))))
                continue
            first = body not in running
            if first:
                running[body] = asyncio.create_task(self._ask(body, places, len(running)))
            verdicts.append(running[body] if first else asyncio.create_task(_again(running[body])))
        return [await v if isinstance(v, asyncio.Task) else v for v in verdicts]

    def _body(self, item: RewardItem, question: _Question) -> bytes:
        options = self._options
        shown = messages(self._template, item.sample, question.completions, images=options.images)
        body = {
            "model": options.model,
            "messages": shown,
            "temperature": options.temperature,
            "max_tokens": options.max_tokens,
            **options.extra,
        }
        return json.dumps(body, allow_nan=False, sort_keys=True).encode()

    async def _ask(self, body: bytes, places: asyncio.Semaphore, number: int) -> _Verdict:
        if self._cache is not None and (kept := self._cache.get(body)):
            return self._read(kept)
        async with places:
            reply = await self._post.ask(body, read_chat_completion, _REPLY_BYTES, first=number)
        if isinstance(reply, Failure):
            return _Verdict(None, invalid(reply.status, reply.error), calls=1)
        verdict = self._read(reply)
        if self._cache is not None and verdict.error is None:
            self._cache.put(body, reply)
        return replace(
            verdict,
            calls=1,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
        )

    def _read(self, reply: Reply) -> _Verdict:
        """The score in a reply; it has cost nothing."""
        try:
            return _Verdict(read_verdict(reply.text, self._options))
        except ValueError as error:
            told = f"{error}; it was cut off, raise max_tokens" if reply.cut else str(error)
            return _Verdict(None, invalid(Status.ERROR, self._post.hide(told)))


def judge(section: JudgeConfig, place: Any) -> JudgeReward:
    """Return the judge of a section.

    Raises:
        ValueError: As of :class:`JudgeReward`.
    """
    try:
        return JudgeReward(section)
    except ValueError as error:
        raise ValueError(f"rewards.{place.name}: {error}") from error


async def _again(task: asyncio.Task[_Verdict]) -> _Verdict:
    """The verdict of an equal request, which cost nothing more."""
    verdict = await task
    return _Verdict(verdict.score, verdict.error)


def _both_orders(own: str, other: str, item: int, opponent: int | None = None) -> list[_Question]:
    """Own as A, then own as B; the verdict is about A."""
    pays: tuple[tuple[int, bool], ...] = ((item, True),)
    if opponent is not None:
        pays = (*pays, (opponent, False))
    turned = tuple((index, not direct) for index, direct in pays)
    return [
        _Question(item, {"completion_a": own, "completion_b": other}, pays),
        _Question(item, {"completion_a": other, "completion_b": own}, turned),
    ]


def _opponents(items: Sequence[RewardItem], count: int) -> list[tuple[int, int]]:
    """Pairs of completions of one prompt: each with the ``count`` after it, in a ring.

    Equal completions are not a pair.
    """
    groups: dict[int, list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        groups[item.group].append(index)
    pairs = {
        tuple(sorted((member, members[(place + step) % len(members)])))
        for members in groups.values()
        for place, member in enumerate(members)
        for step in range(1, min(count, len(members) - 1) + 1)
    }
    return sorted((i, j) for i, j in pairs if items[i].completion != items[j].completion)


def _mean(verdicts: Sequence[_Verdict]) -> Reward:
    """The mean of the verdicts that there are, with what all of them cost."""
    cost = {
        name: float(sum(getattr(v, name) for v in verdicts))
        for name in ("calls", "prompt_tokens", "completion_tokens")
    }
    scores = [v.score for v in verdicts if v.score is not None]
    if scores:
        return Reward(sum(scores) / len(scores), components=cost)
    error = next(v.error for v in verdicts if v.error is not None)
    return replace(error, components=cost)


def _unasked(group_size: int) -> Reward:
    """The reward of a completion that equals all others: a tie, if there is another."""
    if group_size > 1:
        return Reward(0.5)
    return invalid(Status.ERROR, "there is no other completion of its prompt to compare it with")
