"""Conversations of the policy with an environment, turn by turn.

They advance independently: when the turn of one ends, the environment answers it in a thread while
the engine samples the turns of the others, and the answer joins the next request. Tokens are never
read again from text: the next turn's prompt is the token ids before it, those that were sampled,
and those of the answer.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import count, groupby, islice
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mmr1.config import EnvironmentConfig, SamplingConfig
from mmr1.environments.environment import (
    Action,
    Answer,
    Ending,
    Environment,
    Episode,
    Opening,
    Shown,
)
from mmr1.rollout.distribution import join_supports
from mmr1.rollout.protocol import Engine, Finished, Request
from mmr1.types import (
    Completion,
    MediaRef,
    Message,
    Prompt,
    Span,
    Status,
    Support,
    TextPart,
    media_of,
)
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import MediaCache, Medium


@dataclass
class _Conversation:
    """One completion, while it grows.

    Attributes:
        ticket, index: Ticket and index of the completion.
        of_turn: Source that each of its turns is sampled from.
        prompt: Prompt that an environment's opening made of the request's.
        ids: Token ids of the completion so far, placeholders not expanded: for the engine.
        tokens: The same, placeholders expanded: for the trainer.
    """

    ticket: int
    index: int
    request: Request
    of_turn: SamplingConfig
    prompt: Prompt
    episode: Episode
    ids: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    supports: list[Support | int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    observed: list[MediaRef] = field(default_factory=list)
    text: str = ""
    truncated: bool = False
    versions: list[tuple[int, int]] = field(default_factory=list)
    reward: float | None = None
    failure: tuple[Status, str] | None = None

    @property
    def sampled_turns(self) -> int:
        return sum(span.role == "assistant" for span in self.spans)

    @property
    def seed(self) -> int:
        return self.request.seeds[self.index]

    @property
    def left(self) -> int:
        """Tokens that it may still have."""
        return self.request.limit - len(self.tokens)

    def next_prompt(self) -> Prompt:
        """The prompt of the next turn."""
        own = self.prompt
        if not self.ids:
            return own
        return replace(
            own,
            token_ids=(*own.token_ids, *self.ids),
            observed=tuple(self.observed),
            since=tuple(self._since()),
        )

    def _since(self) -> Iterator[tuple[tuple[int, ...], int]]:
        tokens = iter(self.tokens)
        for span in self.spans:
            yield tuple(islice(tokens, span.tokens)), len(span.media)

    def take_turn(self, turn: Completion) -> None:
        ids = turn.token_ids.tolist()
        self.ids += ids
        self.tokens += ids
        self.logprobs += turn.logprobs.tolist()
        self.supports.append(len(turn.token_ids) if turn.support is None else turn.support)
        self.spans.append(Span("assistant", len(ids), turn.text))
        self.text, self.truncated = turn.text, turn.truncated
        for version, tokens in turn.versions or ((turn.policy_version, len(ids)),):
            self._sampled(version, tokens)

    def _sampled(self, version: int, tokens: int) -> None:
        last, before = self.versions[-1] if self.versions else (version, 0)
        if last == version:
            self.versions[-1:] = [(version, before + tokens)]
        else:
            self.versions.append((version, tokens))

    def take_answer(self, answer: Answer) -> None:
        """Take in the environment's answer, except for the text that the policy reads."""
        self.spans[-1] = replace(self.spans[-1], calls=answer.calls, reward=answer.reward)
        if answer.reward is not None:
            self.reward = answer.reward + (self.reward or 0.0)
        self.failure = answer.failure

    def observe(self, answer: Answer, ids: Sequence[int], tokens: list[int]) -> None:
        shown = media_of(answer.messages)
        self.ids += ids
        self.tokens += tokens
        self.logprobs += [0.0] * len(tokens)
        self.supports.append(len(tokens))
        self._sampled(self.versions[-1][0], len(tokens))  # counted with the turn that they answer
        text = "\n".join(message.text for message in answer.messages)
        answers = () if answer.verbatim else tuple(answer.messages)
        self.spans.append(Span("tool", len(tokens), text, shown, answers=answers))
        self.observed += shown

    def take_ending(self, ending: Ending) -> None:
        if ending.reward is not None:
            self.reward = ending.reward + (self.reward or 0.0)
        self.failure = self.failure or ending.failure

    def completion(self) -> Completion:
        return Completion(
            token_ids=np.array(self.tokens, dtype=np.int64),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            support=join_supports(self.supports),
            text=self.text,
            truncated=self.truncated,
            policy_version=min((version for version, _ in self.versions), default=0),
            versions=tuple(self.versions) if len(self.versions) > 1 else (),
            spans=tuple(self.spans),
            reward=self.reward,
            failure=self.failure,
        )


@dataclass(frozen=True, slots=True)
class _Answered:
    """The continuation of a conversation: ``opening`` before its first turn, later an answer.

    Attributes:
        media: The pictures of the answer, prepared.
    """

    opening: Opening | None = None
    answer: Answer = field(default=Answer())
    media: tuple[Medium, ...] = ()


@runtime_checkable
class Conversing(Protocol):
    """An engine whose completions are conversations.

    Attributes:
        turns: The engine that samples their turns.
    """

    turns: Engine


class Player:
    """An ``Engine`` over one that samples turns: its completions are conversations.

    Args:
        engine: Samples the turns.
        environment: Answers them; closed with the engine.
        together: All answers are waited for before the next turns are sampled. An engine that
            samples a batch to its end is used so, and one that is to repeat itself exactly.
        ends_when_cut: A turn that has as many tokens as it may have is the last one.
        system_prompt: System prompt of prompts that an environment adds to.
    """

    def __init__(
        self,
        engine: Engine,
        environment: Environment,
        config: EnvironmentConfig,
        family: ModelFamily,
        media: MediaCache,
        together: bool,
        ends_when_cut: bool = True,
        system_prompt: str | None = None,
    ) -> None:
        self.turns, self.environment = engine, environment
        self._family, self._config, self._media = family, config, media
        self._together, self._ends_when_cut = together, ends_when_cut
        self._system_prompt = system_prompt
        self._threads = ThreadPoolExecutor(config.workers, "environment")
        self._tickets, self._numbers = count(), count()
        self._playing: dict[int, _Conversation] = {}
        self._answering: dict[int, Future[_Answered]] = {}
        self._sampling: dict[int, list[int]] = {}  # conversations by the engine's tickets
        self._ending: dict[int, Future[Ending]] = {}
        self.load, self.probe = engine.load, engine.probe

    def submit(self, requests: Sequence[Request]) -> list[int]:
        self._media.prefetch(m for request in requests for m in request.prompt.media)
        tickets = [next(self._tickets) for _ in requests]
        for ticket, request in zip(tickets, requests, strict=True):
            per_turn = min(self._config.max_tokens_per_turn, request.limit)
            of_turn = request.sampling.changed(max_tokens=per_turn)
            for index in range(len(request.seeds)):
                episode = self.environment.episode(request.prompt.sample)
                conversation = _Conversation(
                    ticket, index, request, of_turn, request.prompt, episode
                )
                self._playing[number := next(self._numbers)] = conversation
                self._answering[number] = self._threads.submit(self._begin, conversation)
        return tickets

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        until = time.monotonic() + wait_s
        while self._playing:
            self._continue(self._answered(until - time.monotonic()))
            if self._sampling:
                for ended in self.turns.poll(self._patience(until)):
                    self._take_turn(ended)
            finished = [self._finish(n) for n, end in [*self._ending.items()] if end.done()]
            if finished or time.monotonic() >= until:
                return finished
        return []

    def cancel(self) -> int:
        lost = sum(
            span.tokens
            for conversation in self._playing.values()
            for span in conversation.spans
            if span.role == "assistant"
        )
        for number in self._playing.keys() - self._ending.keys():
            self._end_when_answered(number)
        self._playing, self._answering, self._sampling, self._ending = {}, {}, {}, {}
        return lost + self.turns.cancel()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.environment.close()
        self.turns.close()

    def _end_when_answered(self, number: int) -> None:
        """Free what the environment has for an episode that nobody continues."""
        end, answer = self._playing[number].episode.end, self._answering.get(number)
        if answer is None:
            self._threads.submit(end)
        else:
            answer.add_done_callback(lambda _: end())

    def _answered(self, wait_s: float) -> list[int]:
        """The conversations that were answered, in order. Waits if nothing else can continue."""
        if self._together:
            wait(self._answering.values())
        elif not self._sampling:
            pending: list[Future[Any]] = [*self._answering.values(), *self._ending.values()]
            wait(pending, max(0.0, wait_s), FIRST_COMPLETED)
        return sorted(number for number, future in self._answering.items() if future.done())

    def _patience(self, until: float) -> float:
        """How long the engine may sample before another look at what was answered meanwhile."""
        left = max(0.0, until - time.monotonic())
        return 0.0 if (self._answering or self._ending) and not self._together else left

    def _continue(self, numbers: Sequence[int]) -> None:
        """Take in the answers of these conversations, and have their next turns sampled."""
        going_on = []
        for number in numbers:
            conversation = self._playing[number]
            if self._has_next_turn(conversation, self._answering.pop(number).result()):
                going_on.append(number)
            else:
                self._ending[number] = self._threads.submit(conversation.episode.end)
        turns, members = list[Request](), list[list[int]]()
        for _, own in groupby(going_on, key=self._shared_turn):
            members.append(list(own))
            together = [self._playing[number] for number in members[-1]]
            first, seeds = together[0], tuple(turn_seed(c.seed, c.sampled_turns) for c in together)
            turns.append(Request(first.next_prompt(), seeds, first.of_turn, first.left))
        if turns:
            self._sampling.update(zip(self.turns.submit(turns), members, strict=True))

    def _shared_turn(self, number: int) -> tuple[int, str | int]:
        """Return what the first turns of one prompt have in common, which is then computed once."""
        conversation = self._playing[number]
        first = not conversation.ids
        return conversation.ticket, conversation.prompt.text if first else number

    def _take_turn(self, ended: Finished) -> None:
        number = self._sampling[ended.ticket][ended.index]
        conversation = self._playing[number]
        conversation.take_turn(ended.completion)
        self._answering[number] = self._threads.submit(self._answer, conversation)
        members = self._sampling[ended.ticket]
        members[ended.index] = -1
        if all(member == -1 for member in members):
            del self._sampling[ended.ticket]

    def _finish(self, number: int) -> Finished:
        conversation = self._playing.pop(number)
        conversation.take_ending(self._ending.pop(number).result())
        begun = None if conversation.prompt is conversation.request.prompt else conversation.prompt
        return Finished(conversation.ticket, conversation.index, conversation.completion(), begun)

    def _begin(self, conversation: _Conversation) -> _Answered:
        """Begin an episode, in a thread."""
        return _Answered(conversation.episode.begin(conversation.prompt.text))

    def _answer(self, conversation: _Conversation) -> _Answered:
        """Ask the environment about the last turn, and prepare what it shows. In a thread."""
        if conversation.failure is not None:  # it could not begin
            return _Answered(None, Answer(failure=conversation.failure))
        prompt = conversation.next_prompt()
        shown = [Shown(m, self._media[m].pixels) for m in prompt.media]
        last = conversation.truncated or conversation.sampled_turns >= self._config.max_turns
        answer = conversation.episode.step(Action(conversation.text, shown, last))
        if not answer.verbatim:
            answer = self._presentable(answer)
        try:
            return _Answered(None, answer, tuple(self._media[m] for m in media_of(answer.messages)))
        except ValueError as error:  # it stands in the midst of the template's own tokens
            failure = (Status.ERROR, f"step: a picture cannot be shown: {error}")
            return _Answered(None, replace(answer, messages=(), failure=failure))

    def _presentable(self, answer: Answer) -> Answer:
        """Replace messages whose pictures the model cannot be shown by the reason."""
        messages, calls = list(answer.messages), list(answer.calls)
        for index, message in enumerate(messages):
            if (problem := self._problem(message)) is None:
                continue
            messages[index] = Message(message.role, (TextPart(f"Error: {problem}"),))
            if index < len(calls):  # of tools each message answers a call
                calls[index] = replace(calls[index], error=problem)
        return replace(answer, messages=tuple(messages), calls=tuple(calls))

    def _problem(self, message: Message) -> str | None:
        try:
            for medium in media_of([message]):
                self._media[medium]
        except ValueError as error:
            return f"it cannot be shown: {error}"
        return None

    def _has_next_turn(self, conversation: _Conversation, answered: _Answered) -> bool:
        """Take in the answer; returns whether there is another turn."""
        if answered.opening is not None:
            conversation.failure = answered.opening.failure
            self._open(conversation, answered.opening.text)
            return True  # its first turn; a completion has tokens, even if it could not begin
        answer = answered.answer
        conversation.take_answer(answer)
        if answer.failure is not None or (conversation.truncated and self._ends_when_cut):
            return False
        if not answer.messages:
            conversation.truncated |= answer.cut
            return False
        text = self._text(answer, ended=conversation.tokens[-1] in self._family.stop_ids)
        try:
            tokens = self._family.read_text(text, answered.media)
        except ValueError as error:
            assert answer.verbatim, "the template writes a placeholder for each picture"
            conversation.failure = (Status.ERROR, f"step: {error}")
            return False
        pictures = len(conversation.observed) + len(answered.media)
        if conversation.left - len(tokens) < 1 or pictures > self._config.max_images:
            conversation.truncated = True
            return False
        ids = self._family.tokenizer(text, add_special_tokens=False)["input_ids"]
        conversation.observe(answer, ids, tokens)
        return True

    def _open(self, conversation: _Conversation, text: str) -> None:
        """Add the environment's opening to the last message of the user."""
        if not text:
            return
        messages = list(conversation.prompt.sample.messages)
        users = [n for n, message in enumerate(messages) if message.role == "user"]
        if not users:
            problem = (
                "reset returned a text, and the prompt has no message of the user to add it to"
            )
            conversation.failure = (Status.ERROR, problem)
            return
        last = users[-1]
        messages[last] = replace(messages[last], parts=(*messages[last].parts, TextPart(text)))
        sample = replace(conversation.prompt.sample, messages=tuple(messages))
        conversation.prompt = self._family.render_prompt(sample, self._system_prompt)

    def _text(self, answer: Answer, ended: bool) -> str:
        """The answer as the policy will read it."""
        if not answer.verbatim:
            return self._family.chat.observation_text(answer.messages, ended)
        return "".join(message.text for message in answer.messages)


def turn_seed(seed: int, turn: int) -> int:
    """The seed of a turn, from 0: the first has the completion's own.

    >>> turn_seed(7, 0), turn_seed(7, 1) == turn_seed(7, 1) != turn_seed(8, 1)
    (7, True)
    """
    if turn == 0:
        return seed
    digest = hashlib.sha256(f"{seed}:{turn}".encode()).digest()
    return int.from_bytes(digest[:6], "big")
