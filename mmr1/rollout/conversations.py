"""Conversations of the policy with an environment, turn by turn.

They advance independently: when the turn of one ends, the environment answers it in a thread while
the engine samples the turns of the others, and the answer joins the next request. Tokens are never
read again from text: the next turn's prompt is the token ids before it, those that were sampled,
and those of the answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Self

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
from mmr1.rollout.engine import PreparedRequest, Request, RolloutEngine, TurnEngine
from mmr1.types import (
    Completion,
    MediaRef,
    Message,
    Prompt,
    RolloutGroup,
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
        ids: Of the completion so far, placeholders not expanded: for the engine.
        tokens: The same, placeholders expanded: for the trainer.
    """

    request: Request
    seed: int
    episode: Episode
    ids: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    supports: list[Support | int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    observed: list[MediaRef] = field(default_factory=list)
    text: str = ""
    truncated: bool = False
    version: int | None = None
    reward: float | None = None
    failure: tuple[Status, str] | None = None

    @property
    def turns(self) -> int:
        return sum(span.role == "assistant" for span in self.spans)

    def prompt(self) -> Prompt:
        """The prompt of the next turn."""
        own = self.request.prompt
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
        version = turn.policy_version
        self.version = version if self.version is None else min(version, self.version)

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
            policy_version=self.version or 0,
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


class ConversationEngine:
    """A ``RolloutEngine`` whose completions are conversations with an environment.

    Args:
        engine: The engine, for all but sampling.
        turns: The same engine, or the process that it lives in: samples the turns.
        environment: Answers them; closed with the engine.
        at_once: All answers are waited for before the next turns are sampled, together. An engine
            that samples a batch to its end is used so, and one that is to repeat itself exactly.
        ends_when_cut: A turn that has as many tokens as it may have is the last one.
        system_prompt: Of prompts that an environment adds to.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        turns: TurnEngine,
        environment: Environment,
        config: EnvironmentConfig,
        family: ModelFamily,
        media: MediaCache,
        at_once: bool,
        ends_when_cut: bool = True,
        system_prompt: str | None = None,
    ) -> None:
        self.engine, self.environment, self._turns = engine, environment, turns
        self.family = family
        self._config, self._media = config, media
        self._at_once, self._ends_when_cut = at_once, ends_when_cut
        self._system_prompt = system_prompt
        self._threads = ThreadPoolExecutor(config.workers, "environment")
        self.load_weights = engine.load_weights
        self.probe = engine.probe

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[RolloutGroup]:
        conversations = [
            _Conversation(r, r.seed + index, self.environment.episode(r.prompt.sample))
            for r in requests
            for index in range(r.n)
        ]
        self._media.prefetch(m for request in requests for m in request.prompt.media)
        try:
            self._converse(conversations, sampling)
        except BaseException:
            with suppress(Exception):  # the engine may be what failed
                self._turns.abandon()
            raise
        in_order = iter(conversations)
        return [_group([next(in_order) for _ in range(r.n)]) for r in requests]

    def with_environment(self, environment: Environment, max_tokens_per_turn: int) -> Self:
        """The same engine with another environment. Its conversations continue after a cut turn."""
        config = self._config.changed(max_tokens_per_turn=max_tokens_per_turn)
        return type(self)(
            self.engine,
            self._turns,
            environment,
            config,
            self.family,
            self._media,
            self._at_once,
            ends_when_cut=False,
        )

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.environment.close()
        self.engine.close()

    def _converse(self, conversations: Sequence[_Conversation], sampling: SamplingConfig) -> None:
        """Bring all conversations to their ends."""
        per_turn = min(self._config.max_tokens_per_turn, sampling.max_tokens)
        of_turn = sampling.changed(max_tokens=per_turn)
        answering = {
            number: self._threads.submit(self._begin, conversation)
            for number, conversation in enumerate(conversations)
        }
        ending: dict[int, Future[Ending]] = {}
        requests: dict[int, PreparedRequest] = {}
        in_engine = 0
        while answering or requests or in_engine:
            for number in self._answered(answering, idle=not requests and not in_engine):
                conversation = conversations[number]
                if self._has_next_turn(conversation, answering.pop(number).result(), sampling):
                    requests[number] = self._next_request(conversation, sampling)
                else:
                    ending[number] = self._threads.submit(conversation.episode.end)
            if requests or in_engine:
                in_order = {number: requests[number] for number in sorted(requests)}
                in_engine += len(requests)
                requests = {}
                for number, turn in self._turns.advance(in_order, of_turn).items():
                    in_engine -= 1
                    conversations[number].take_turn(turn)
                    answering[number] = self._threads.submit(self._answer, conversations[number])
        for number, future in ending.items():
            conversations[number].take_ending(future.result())

    def _answered(self, answering: Mapping[int, Future[_Answered]], idle: bool) -> list[int]:
        """The conversations that were answered, in order. Waits if nothing else can continue."""
        if self._at_once:
            wait(answering.values())
        elif idle:
            wait(answering.values(), return_when=FIRST_COMPLETED)
        return sorted(number for number, future in answering.items() if future.done())

    def _begin(self, conversation: _Conversation) -> _Answered:
        """Begin an episode, in a thread."""
        return _Answered(conversation.episode.begin(conversation.request.prompt.text))

    def _answer(self, conversation: _Conversation) -> _Answered:
        """Ask the environment about the last turn, and prepare what it shows. In a thread."""
        if conversation.failure is not None:  # it could not begin
            return _Answered(None, Answer(failure=conversation.failure))
        prompt = conversation.prompt()
        shown = [Shown(m, self._media[m].pixels) for m in prompt.media]
        last = conversation.truncated or conversation.turns >= self._config.max_turns
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

    def _has_next_turn(
        self, conversation: _Conversation, answered: _Answered, sampling: SamplingConfig
    ) -> bool:
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
        text = self._text(answer, ended=conversation.tokens[-1] in self.family.stop_ids)
        try:
            tokens = self.family.read_text(text, answered.media)
        except ValueError as error:
            assert answer.verbatim, "the template writes a placeholder for each picture"
            conversation.failure = (Status.ERROR, f"step: {error}")
            return False
        pictures = len(conversation.observed) + len(answered.media)
        left = sampling.max_tokens - len(conversation.tokens) - len(tokens)
        if left < 1 or pictures > self._config.max_images:
            conversation.truncated = True
            return False
        ids = self.family.tokenizer(text, add_special_tokens=False)["input_ids"]
        conversation.observe(answer, ids, tokens)
        return True

    def _open(self, conversation: _Conversation, text: str) -> None:
        """Add the environment's opening to the last message of the user."""
        if not text:
            return
        request = conversation.request
        messages = list(request.prompt.sample.messages)
        users = [n for n, message in enumerate(messages) if message.role == "user"]
        if not users:
            problem = (
                "reset returned a text, and the prompt has no message of the user to add it to"
            )
            conversation.failure = (Status.ERROR, problem)
            return
        last = users[-1]
        messages[last] = replace(messages[last], parts=(*messages[last].parts, TextPart(text)))
        sample = replace(request.prompt.sample, messages=tuple(messages))
        prompt = self.family.render_prompt(sample, self._system_prompt)
        conversation.request = replace(request, prompt=prompt)

    def _text(self, answer: Answer, ended: bool) -> str:
        """The answer as the policy will read it."""
        if not answer.verbatim:
            return self.family.chat.observation_text(answer.messages, ended)
        return "".join(message.text for message in answer.messages)

    def _next_request(
        self, conversation: _Conversation, sampling: SamplingConfig
    ) -> PreparedRequest:
        prompt = conversation.prompt()
        left = sampling.max_tokens - len(conversation.tokens)
        seed = turn_seed(conversation.seed, conversation.turns)
        request = Request(prompt, 1, seed, max_tokens=left)
        return PreparedRequest(request, tuple(self._media[m] for m in prompt.media))


def _group(conversations: Sequence[_Conversation]) -> RolloutGroup:
    """The completions of one prompt.

    Raises:
        ValueError: The environment began them with different texts.
    """
    begun = [c for c in conversations if c.failure is None] or conversations
    prompt = begun[0].request.prompt
    if any(c.request.prompt.text != prompt.text for c in begun):
        raise ValueError(
            f"record '{prompt.sample.id}': the environment's reset returned different texts for "
            "completions of one prompt, which are compared with each other; let what it returns "
            "depend on the record alone"
        )
    return RolloutGroup(prompt, tuple(c.completion() for c in conversations))


def turn_seed(seed: int, turn: int) -> int:
    """The seed of a turn, from 0: the first has the completion's own.

    >>> turn_seed(7, 0), turn_seed(7, 1) == turn_seed(7, 1) != turn_seed(8, 1)
    (7, True)
    """
    if turn == 0:
        return seed
    digest = hashlib.sha256(f"{seed}:{turn}".encode()).digest()
    return int.from_bytes(digest[:6], "big")
