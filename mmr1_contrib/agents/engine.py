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
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from mmr1.config import Config, SamplingConfig
from mmr1.rollout.engines import samples_together
from mmr1.rollout.protocol import Engine, Finished, Request
from mmr1.types import Completion, Prompt, Status
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
        of_turn: Source that each turn is sampled from.
    """

    def __init__(
        self,
        prompt: Prompt,
        seed: int,
        of_turn: SamplingConfig,
        config: AgentConfig,
        limit: int,
        family: ModelFamily,
        media: MediaCache,
        special: Sequence[str],
        inbox: queue.SimpleQueue[_Asked | None],
    ) -> None:
        self.prompt, self.key, self.of_turn = prompt, secrets.token_urlsafe(16), of_turn
        self.turns = Turns(prompt.sample, seed, family, special)
        self.waiting = self.accepted = self._refused = 0
        self.truncated = self.begun = self.over = self.ended = self.abandoned = False
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
    def plays(self) -> bool:
        """True until its program has ended and all that it asked has been answered."""
        return not self.ended or self.waiting > 0

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
    config: Config, engine: Engine, family: ModelFamily, media: MediaCache
) -> AgentEngine:
    """The engine behind agent programs; their processes and its server are started.

    Raises:
        ValueError: The program cannot be loaded, or the package openai is not installed.
    """
    assert isinstance(config.environment, AgentConfig)
    rollout = config.rollout
    return AgentEngine(
        engine,
        config.environment,
        family,
        media,
        samples_together(config),
        rollout.max_prompt_length + rollout.sampling.max_tokens,
    )


class AgentEngine:
    """An ``Engine`` whose completions are episodes of an agent program.

    Those of a request end together: what they have in common is their prompt.

    Args:
        turns: Samples what the programs ask for.
        together: The turns of all programs are sampled together, as in ``Player``.
        limit: Tokens of one conversation, its prompt included.
    """

    def __init__(
        self,
        turns: Engine,
        config: AgentConfig,
        family: ModelFamily,
        media: MediaCache,
        together: bool,
        limit: int,
    ) -> None:
        self.turns = turns
        self._family, self._config, self._media, self._together = family, config, media, together
        added = family.tokenizer.added_tokens_decoder.values()
        self._episodes: dict[str, _Episode] = {}
        self._tickets = count()
        self._groups: dict[int, list[_Episode]] = {}
        self._running: dict[Future[None], _Episode] = {}
        self._under_way: dict[int, _Asked] = {}  # by the engine's tickets
        self._inbox: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._episode = partial(
            _Episode,
            config=config,
            limit=limit,
            family=family,
            media=media,
            special=[str(token) for token in added if token.special],
            inbox=self._inbox,
        )
        self._workers = program_workers(config)
        self._threads = ThreadPoolExecutor(config.workers, "agent program")
        self._server = AgentServer(self._episodes.get)
        self.load, self.probe = turns.load, turns.probe

    def submit(self, requests: Sequence[Request]) -> list[int]:
        tickets = [next(self._tickets) for _ in requests]
        for ticket, request in zip(tickets, requests, strict=True):
            per_turn = min(self._config.max_tokens_per_turn, request.limit)
            of_turn = request.sampling.changed(max_tokens=per_turn)
            group = [self._episode(request.prompt, seed, of_turn) for seed in request.seeds]
            self._groups[ticket] = group
            for episode in group:
                self._episodes[episode.key] = episode
                future = self._threads.submit(self._run, episode)
                self._running[future] = episode
                future.add_done_callback(lambda _: self._inbox.put(None))
        return tickets

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        until = time.monotonic() + wait_s
        while self._groups:
            self._ask(self._asked(until - time.monotonic()))
            if self._under_way:
                left = 0.0 if self._running and not self._together else until - time.monotonic()
                for ended in self.turns.poll(max(0.0, left)):
                    asked = self._under_way.pop(ended.ticket)
                    asked.episode.take(asked, ended.completion)
            finished = [
                ended
                for ticket, group in [*self._groups.items()]
                if not any(episode.plays for episode in group)
                for ended in self._finish(ticket)
            ]
            if finished or time.monotonic() >= until:
                return finished
        return []

    def cancel(self) -> int:
        """Drop all that is under way; programs are told at their next request."""
        lost = 0
        for episode in self._episodes.values():
            episode.abandoned = True
            lost += sum(len(turn.ids) for turn in episode.turns.all)
        self._episodes.clear()
        self._groups, self._running, self._under_way = {}, {}, {}
        return lost + self.turns.cancel()

    def close(self) -> None:
        for episode in [*self._episodes.values()]:
            episode.abandoned = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._server.close()
        self._workers.close()
        self.turns.close()

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

    def _asked(self, wait_s: float) -> Iterable[_Asked]:
        """The requests of programs. Waits if nothing else can continue."""
        asked: list[_Asked] = []
        until = time.monotonic() + wait_s
        while True:
            waits = self._together and any(e.holds_up for e in self._running.values())
            idle = not self._under_way and not asked and bool(self._running)
            left = until - time.monotonic()
            try:  # not for ever: Ctrl-C just before would be heard only after the next request
                item = self._inbox.get(
                    block=waits or (idle and left > 0),
                    timeout=_LOOK_S if waits else min(_LOOK_S, max(left, 1e-3)),
                )
            except queue.Empty:
                if waits:
                    continue
                return asked
            if item is not None:
                if not item.episode.abandoned:
                    asked.append(item)
                continue
            for future in [future for future in self._running if future.done()]:
                future.result()
                episode = self._running.pop(future)
                episode.ended = True
                if not episode.accepted:
                    asked.append(episode.own_turn())

    def _ask(self, asked: Iterable[_Asked]) -> None:
        """Have turns sampled together."""
        both = [(one, request) for one in asked if (request := self._request(one)) is not None]
        if both:
            tickets = self.turns.submit([request for _, request in both])
            self._under_way.update(zip(tickets, (one for one, _ in both), strict=True))

    def _request(self, asked: _Asked) -> Request | None:
        """The request; None where a picture cannot be read, which the program is told."""
        try:
            asked.turn.read(self._family, self._media)
            prompt = asked.turn.context(asked.episode.prompt)
            for medium in prompt.media:
                self._media[medium]
        except ValueError as error:
            asked.episode.stop_waiting()
            asked.answer.set_exception(RefusedError(f"a picture cannot be shown: {error}"))
            return None
        return Request(prompt, (asked.turn.seed,), asked.episode.of_turn, asked.max_tokens)

    def _finish(self, ticket: int) -> list[Finished]:
        """The completions of a request whose programs have all ended."""
        episodes = self._groups.pop(ticket)
        for episode in episodes:
            del self._episodes[episode.key]
        firsts = [c[0] for e in episodes for c in conversations(e.turns.all)]
        shared = shared_prompt(episodes[0].prompt, firsts, self._family)
        return [
            Finished(
                ticket,
                index,
                completion(
                    episode.turns.all,
                    shared,
                    self._family,
                    self._media,
                    episode.reward,
                    episode.failure,
                    episode.truncated,
                ),
                shared,
            )
            for index, episode in enumerate(episodes)
        ]
