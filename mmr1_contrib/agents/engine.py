"""Completions by agent programs: mmr1 serves their requests, and learns from its answers.

A program runs in a process and asks when it likes. Its requests join those of the others in the
engine; what they have in common with earlier ones is in :mod:`mmr1_contrib.agents.turns`.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from mmr1.config import Config, CustomEnvironmentConfig, SamplingConfig
from mmr1.environments.environment import Environment
from mmr1.rollout.conversations import ConversationEngine
from mmr1.rollout.engine import PreparedRequest, Request, RolloutEngine, TurnEngine
from mmr1.rollout.engines import samples_at_once
from mmr1.types import Completion, Prompt, RolloutGroup, Status
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import MediaCache
from mmr1_contrib.agents.programs import program_workers
from mmr1_contrib.agents.sections import AgentConfig
from mmr1_contrib.agents.server import AgentServer, RefusedError
from mmr1_contrib.agents.turns import Turn, Turns, completion, conversations, shared_prompt

_FLOOD = 100
"""Refused requests after which a program is ended."""
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that waits for the engine."""

    episode: _Episode
    turn: Turn
    max_tokens: int
    answer: Future[Turn] = field(default_factory=Future)


class _Episode:
    """One run of a program: a ``Session`` of the server, and the ``Watch`` of its process.

    Time is charged while it waits for nothing: the engine may be busy with others.

    Args:
        limit: Tokens of one conversation, its prompt included.
        inbox: Takes what the program asks.
    """

    def __init__(
        self,
        prompt: Prompt,
        seed: int,
        config: AgentConfig,
        limit: int,
        family: ModelFamily,
        media: MediaCache,
        special: Sequence[str],
        inbox: queue.SimpleQueue[_Asked | None],
    ) -> None:
        self.prompt, self.key = prompt, secrets.token_urlsafe(16)
        self.turns = Turns(prompt.sample, seed, family, special)
        self.waiting = self.accepted = self._refused = 0
        self.truncated = self.begun = self.over = self.abandoned = False
        self.reward: float | None = None
        self.failure: tuple[Status, str] | None = None
        self._seed, self._config, self._limit = seed, config, limit
        self._family, self._media, self._inbox = family, media, inbox
        self._latest: dict[bytes, Future[Turn]] = {}
        self._lock = threading.Lock()
        self._since = time.monotonic()

    def begin(self) -> None:
        """Note when the program starts."""
        self._since, self.begun = time.monotonic(), True

    @property
    def holds_up(self) -> bool:
        """True if its program runs and has not asked."""
        return self.begun and not self.waiting

    def ask(self, body: Mapping[str, Any], retried: bool) -> Future[Turn]:
        """See ``Session``."""
        with self._lock:
            try:
                return self._ask(body, retried)
            except ValueError:
                self._refused += 1
                raise

    def _ask(self, body: Mapping[str, Any], retried: bool) -> Future[Turn]:
        config = self._config
        if self.over or self.abandoned:
            raise RefusedError("the episode is over")
        if self.accepted >= config.max_turns:
            self.truncated = True
            raise RefusedError(f"an episode has {config.max_turns} turns (environment.max_turns)")
        turn = self.turns.open(body)
        if retried and turn.before in self._latest:
            return self._latest[turn.before]
        if len(turn.media) > config.max_images:
            self.truncated = True
            raise RefusedError(
                f"{len(turn.media)} pictures in one conversation, and environment.max_images is "
                f"{config.max_images}",
                "context_length_exceeded",
            )
        length = self._family.prompt_length(turn.context(self.prompt))
        if (left := self._limit - length) < 1:
            self.truncated = True
            raise RefusedError(
                f"the conversation has {length} tokens, and {self._limit} are the most "
                "(rollout.max_prompt_length + rollout.max_response_length)",
                "context_length_exceeded",
            )
        asked_for = body.get("max_completion_tokens") or body.get("max_tokens") or left
        self._media.prefetch(turn.media)
        asked = _Asked(self, turn, max(1, min(left, int(asked_for))))
        self._latest[turn.before] = asked.answer
        self.waiting += 1
        self.accepted += 1
        self._inbox.put(asked)
        return asked.answer

    def own_turn(self) -> _Asked:
        """A turn of one token for a program that made no request: a completion has tokens."""
        prompt = self.prompt
        turn = Turn(prompt, prompt.token_ids, self._seed)
        self.failure = self.failure or (Status.ERROR, "program: it made no request")
        self.waiting += 1
        self.accepted += 1
        return _Asked(self, turn, 1)

    def take(self, asked: _Asked, sampled: Completion) -> None:
        """Take what the engine sampled, in the engine's thread."""
        with self._lock:
            self.turns.take(asked.turn, sampled)
        self.stop_waiting()
        asked.answer.set_result(asked.turn)

    def stop_waiting(self) -> None:
        with self._lock:
            self.waiting -= 1
            self._since = time.monotonic()

    @property
    def passed(self) -> str | None:
        """See ``Watch``."""
        if self.abandoned:
            return "the end of its step"
        if self._refused > _FLOOD:
            return f"{self._refused} refused requests"
        if not self.waiting and time.monotonic() - self._since > self._config.timeout_s:
            return f"{self._config.timeout_s:g} s between two requests"
        return None

    @property
    def wait_s(self) -> float:
        """See ``Watch``."""
        left = self._since + self._config.timeout_s - time.monotonic()
        return _LOOK_S if self.waiting else max(0.01, min(_LOOK_S, left))


def agent_engine(
    config: Config, engine: RolloutEngine, turns: TurnEngine, family: ModelFamily, media: MediaCache
) -> AgentEngine:
    """The engine behind agent programs; their processes and its server are started.

    Raises:
        ValueError: The program cannot be loaded, or the package openai is not installed.
    """
    assert isinstance(config.environment, AgentConfig)
    rollout = config.rollout
    return AgentEngine(
        engine,
        turns,
        config.environment,
        family,
        media,
        samples_at_once(config),
        rollout.max_prompt_length + rollout.sampling.max_tokens,
    )


class AgentEngine:
    """A ``RolloutEngine`` whose completions are episodes of an agent program.

    Args:
        engine: The engine, for all but sampling.
        turns: The same engine, or the process that it lives in: samples the turns.
        at_once: The turns of all programs are sampled together, as in ``ConversationEngine``.
        limit: Tokens of one conversation, its prompt included.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        turns: TurnEngine,
        config: AgentConfig,
        family: ModelFamily,
        media: MediaCache,
        at_once: bool,
        limit: int,
    ) -> None:
        self.engine, self.family = engine, family
        self._turns, self._config, self._media = turns, config, media
        self._at_once, self._limit = at_once, limit
        added = family.tokenizer.added_tokens_decoder.values()
        self._special = [str(token) for token in added if token.special]
        self._episodes: dict[str, _Episode] = {}
        self._inbox: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._workers = program_workers(config)
        self._threads = ThreadPoolExecutor(config.workers, "agent program")
        self._server = AgentServer(self._episodes.get)
        self.load_weights = engine.load_weights
        self.probe = engine.probe

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[RolloutGroup]:
        episodes = [
            [self._episode(r.prompt, r.seed + index) for index in range(r.n)] for r in requests
        ]
        everyone = [episode for group in episodes for episode in group]
        self._episodes.update({episode.key: episode for episode in everyone})
        running = {self._threads.submit(self._run, episode): episode for episode in everyone}
        for future in running:
            future.add_done_callback(lambda _: self._inbox.put(None))
        try:
            self._converse(running, sampling)
        except BaseException:
            for episode in everyone:
                episode.abandoned = True
            with suppress(Exception):  # the engine may be what failed
                self._turns.abandon()
            raise
        finally:
            for episode in everyone:
                del self._episodes[episode.key]
        return [self._group(r.prompt, group) for r, group in zip(requests, episodes, strict=True)]

    def with_environment(
        self, environment: Environment, max_tokens_per_turn: int
    ) -> ConversationEngine:
        """An engine for conversations with an environment in place of the program."""
        limits = CustomEnvironmentConfig(
            use=self._config.use, max_tokens_per_turn=max_tokens_per_turn
        )
        return ConversationEngine(
            self.engine,
            self._turns,
            environment,
            limits,
            self.family,
            self._media,
            self._at_once,
            ends_when_cut=False,
        )

    def close(self) -> None:
        for episode in [*self._episodes.values()]:
            episode.abandoned = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._server.close()
        self._workers.close()
        self.engine.close()

    def _episode(self, prompt: Prompt, seed: int) -> _Episode:
        return _Episode(
            prompt,
            seed,
            self._config,
            self._limit,
            self.family,
            self._media,
            self._special,
            self._inbox,
        )

    def _run(self, episode: _Episode) -> None:
        """Run the program to its end, in a thread."""
        episode.begin()
        config = self._config
        arguments = (config.use, config.options, episode.prompt.sample)
        answer = self._workers.call(
            "run",
            *arguments,
            self._server.base_url,
            episode.key,
            module="mmr1_contrib.agents.programs",
            watch=episode,
        )
        episode.over = True
        if answer.error is None:
            episode.reward = answer.value
            return
        if episode.truncated and answer.status == Status.ERROR:
            return  # its client raised what a limit had refused: the completion is cut, not broken
        reason = episode.passed if answer.status == Status.TIMEOUT else None
        error = answer.error if reason is None else f"it was ended after {reason}"
        episode.failure = (answer.status, f"program: {error}")

    def _converse(self, running: dict[Future[None], _Episode], sampling: SamplingConfig) -> None:
        """Answer all programs until they have ended."""
        per_turn = min(self._config.max_tokens_per_turn, sampling.max_tokens)
        of_turn = sampling.changed(max_tokens=per_turn)
        under_way: dict[int, _Asked] = {}
        numbers = count()
        while running or under_way:
            new: dict[int, PreparedRequest] = {}
            for asked in self._asked(running, idle=not under_way):
                if (prepared := self._prepared(asked)) is not None:
                    new[number := next(numbers)] = prepared
                    under_way[number] = asked
            if under_way:
                for number, sampled in self._turns.advance(new, of_turn).items():
                    asked = under_way.pop(number)
                    asked.episode.take(asked, sampled)

    def _asked(self, running: dict[Future[None], _Episode], idle: bool) -> Iterable[_Asked]:
        """The requests of programs. Waits if nothing else can continue."""
        asked: list[_Asked] = []
        while True:
            patient = idle and not asked and bool(running)
            if self._at_once:
                patient |= any(episode.holds_up for episode in running.values())
            try:  # not for ever: Ctrl-C just before would be heard only after the next request
                item = self._inbox.get(block=patient, timeout=_LOOK_S)
            except queue.Empty:
                if patient:
                    continue
                return asked
            if item is not None:
                asked.append(item)
                continue
            for future in [future for future in running if future.done()]:
                future.result()
                episode = running.pop(future)
                if not episode.accepted:
                    asked.append(episode.own_turn())

    def _prepared(self, asked: _Asked) -> PreparedRequest | None:
        """A prepared request; None where a picture cannot be read, which the program is told."""
        try:
            asked.turn.read(self.family, self._media)
            prompt = asked.turn.context(asked.episode.prompt)
            request = Request(prompt, 1, asked.turn.seed, max_tokens=asked.max_tokens)
            return PreparedRequest(request, tuple(self._media[m] for m in prompt.media))
        except ValueError as error:
            asked.episode.stop_waiting()
            asked.answer.set_exception(RefusedError(f"a picture cannot be shown: {error}"))
            return None

    def _group(self, prompt: Prompt, episodes: Sequence[_Episode]) -> RolloutGroup:
        firsts = [c[0] for e in episodes for c in conversations(e.turns.all)]
        shared = shared_prompt(prompt, firsts, self.family)
        return RolloutGroup(
            shared,
            tuple(
                completion(
                    episode.turns.all,
                    shared,
                    self.family,
                    self._media,
                    episode.reward,
                    episode.failure,
                    episode.truncated,
                )
                for episode in episodes
            ),
        )
