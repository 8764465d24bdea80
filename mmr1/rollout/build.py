"""The rollout engine that a configuration names, put together by its capabilities.

What it does not provide is made here: media that are prepared while it samples, conversations, and
transfers of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch

from mmr1.config import Config, EnvironmentConfig, SamplingConfig, VllmArguments
from mmr1.data.rendering import system_prompt
from mmr1.environments.build import build_environment
from mmr1.rollout.conversations import ConversationEngine
from mmr1.rollout.engine import (
    PreparedRequest,
    Probe,
    ReceivingEngine,
    Request,
    RolloutEngine,
    SleepingEngine,
    StreamingEngine,
    TurnEngine,
)
from mmr1.rollout.engines import EngineSetting, engine_type, samples_at_once, transfers_weights
from mmr1.types import Completion, Prompt, RolloutGroup
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache

Builder = Callable[[Config, RolloutEngine, TurnEngine, ModelFamily, MediaCache], RolloutEngine]
"""Builds the engine of an environment, as ``EnvironmentSection.builder`` names it."""


def check_gpus(config: Config) -> None:
    """Refuse an engine that asks for more GPUs than this machine has, before anything is loaded.

    Raises:
        ValueError: ``rollout.engine.tensor_parallel_size`` is too high, or the number of stages.
    """
    engine = config.rollout.engine
    if not isinstance(engine, VllmArguments) or config.distributed:
        return  # on Ray, other machines may have the GPUs
    if engine.gpus > 1 and (gpus := torch.cuda.device_count()) < engine.gpus:
        raise ValueError(
            f"{engine.gpus_as_set}: an engine needs that many GPUs, and this machine has {gpus}; "
            f"lower it to {max(gpus, 1)}"
        )


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """One engine behind all protocols.

    Attributes:
        rollout: As it samples completions.
        turns: As it samples the turns of conversations.
        receiving: As it is sent weights on GPUs; None where ``load_weights`` brings them.
        sleeping: As it gives up its memory; None if it cannot.
    """

    rollout: RolloutEngine
    turns: TurnEngine
    receiving: ReceivingEngine | None
    sleeping: SleepingEngine | None


def assemble(setting: EngineSetting) -> BuiltEngine:
    """Build an engine. What it cannot do itself is composed of what it can."""
    config, kind = setting.config, engine_type(setting.config)
    engine = kind.build(setting)
    rollout: RolloutEngine = engine
    if kind.streams:
        rollout = PrefetchingEngine(engine, setting.media, config.full_determinism)
    return BuiltEngine(
        rollout,
        turns=engine if kind.holds_conversations else BatchedTurns(rollout, setting.family),
        receiving=engine if transfers_weights(config) else None,
        sleeping=engine if kind.sleeps else None,
    )


def build_engine(
    config: Config,
    family: ModelFamily,
    media: MediaCache,
    log: Path,
    model: Any,
    features: FeatureCache | None = None,
) -> RolloutEngine:
    """The rollout engine that ``rollout.engine`` names.

    One that samples from the policy itself samples from ``model``, and shares the ``features`` of
    its frozen vision tower.
    """
    built = assemble(EngineSetting(config, family, media, model, features, log))
    return with_conversations(config, built.rollout, built.turns, family, media)


def with_conversations(
    config: Config, engine: RolloutEngine, turns: TurnEngine, family: ModelFamily, media: MediaCache
) -> RolloutEngine:
    """The engine with the environment of the configuration, if there is one, between the policy's
    turns.

    Args:
        turns: The engine as it samples turns.
    """
    if config.rollout.streams and config.command != "eval":
        return ContinuousEngine(engine, turns)
    if config.environment is None:
        return engine
    build: Builder = resolve_name(config.environment.builder)
    try:
        return build(config, engine, turns, family, media)
    except BaseException:
        engine.close()
        raise


def conversation_engine(
    config: Config, engine: RolloutEngine, turns: TurnEngine, family: ModelFamily, media: MediaCache
) -> ConversationEngine:
    """The engine with tools, or an environment of the user's own.

    Raises:
        ValueError: They cannot be loaded.
    """
    assert isinstance(config.environment, EnvironmentConfig)
    environment = build_environment(config.environment, config.rollout.timeout_s)
    return ConversationEngine(
        engine,
        turns,
        environment,
        config.environment,
        family,
        media,
        samples_at_once(config),
        system_prompt=system_prompt(config),
    )


CHUNK_BYTES = 64 * 2**20
"""Of media, as they are prepared: about what an engine on a GPU computes in its first step."""


class PrefetchingEngine:
    """A ``RolloutEngine`` made of one that takes prepared media.

    Requests whose media are prepared go first, so that the engine samples while other media are
    still being decoded; it begins when it has the first chunk of them. Prompts that share a medium
    go next to each other.

    Args:
        engine: In this process or in another.
        media: The trainer's prepared media.
        at_once: Hand over all requests together. What is sampled together then does not depend on
            how fast media were prepared, and neither does the rounding of the results.
    """

    def __init__(self, engine: StreamingEngine, media: MediaCache, at_once: bool = False) -> None:
        self.engine = engine
        self._media = media
        self._at_once = at_once
        # Weights and the end of the engine have nothing to do with media.
        self.load_weights = engine.load_weights
        self.close = engine.close

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[RolloutGroup]:
        self._media.prefetch(m for request in requests for m in request.prompt.media)
        ready = [all(map(self._media.is_ready, r.prompt.media)) for r in requests]
        order = streaming_order([r.prompt for r in requests], ready)
        streamed = self.engine.stream(self._chunks(requests, ready, order), sampling)
        groups = dict(zip(order, streamed, strict=True))
        return [groups[place] for place in range(len(requests))]

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        return self.engine.probe([self._prepared(Request(p, 1, 0)) for p in prompts])

    def _chunks(
        self, requests: Sequence[Request], ready: Sequence[bool], order: Sequence[int]
    ) -> Iterator[list[PreparedRequest]]:
        """The requests that are ready in chunks, then the others one by one."""
        first = len(order) if self._at_once else sum(ready)
        yield from self._cut(self._prepared(requests[place]) for place in order[:first])
        for place in order[first:]:
            yield [self._prepared(requests[place])]

    def _cut(self, prepared: Iterable[PreparedRequest]) -> Iterator[list[PreparedRequest]]:
        """Chunks of about ``CHUNK_BYTES``; those that share a medium are in one."""
        chunk = list[PreparedRequest]()
        held: dict[str, int] = {}
        for request in prepared:
            new = {m.digest: m.kept_bytes for m in request.media if m.digest not in held}
            if new and sum(held.values()) >= CHUNK_BYTES and not self._at_once:
                yield chunk
                chunk, held = [], {m.digest: m.kept_bytes for m in request.media}
            held |= new
            chunk.append(request)
        yield chunk

    def _prepared(self, request: Request) -> PreparedRequest:
        return PreparedRequest(request, tuple(self._media[m] for m in request.prompt.media))


def streaming_order(prompts: Sequence[Prompt], ready: Sequence[bool]) -> list[int]:
    """Indices of the prompts: the ready ones first, those with the same media together."""
    keys = [tuple(m.digest() for m in prompt.media) for prompt in prompts]
    first = {key: place for place, key in reversed(list(enumerate(keys)))}
    return sorted(range(len(prompts)), key=lambda i: (not ready[i], first[keys[i]], i))


class ContinuousEngine:
    """A ``RolloutEngine`` that is a ``TurnEngine`` as well: for a run that streams.

    It samples batches only while nothing is under way.
    """

    def __init__(self, engine: RolloutEngine, turns: TurnEngine) -> None:
        self.generate, self.probe, self.close = engine.generate, engine.probe, engine.close
        self.load_weights, self.advance, self.abandon = (
            engine.load_weights,
            turns.advance,
            turns.abandon,
        )


class BatchedTurns:
    """A ``TurnEngine`` made of one that samples a batch to its end."""

    def __init__(self, engine: RolloutEngine, family: ModelFamily) -> None:
        self._engine, self._family = engine, family

    def advance(
        self,
        requests: Mapping[int, PreparedRequest],
        sampling: SamplingConfig,
        moment_s: float = 0.0,
    ) -> dict[int, Completion]:
        """Sample all turns to their ends. Those of one prompt are one request."""
        shared: list[Request] = []
        for request in (prepared.request for prepared in requests.values()):
            last = shared[-1] if shared else None
            if last is None or request != replace(last, n=1, seed=last.seed + last.n):
                shared.append(request)
            else:
                shared[-1] = replace(last, n=last.n + 1)
        groups = self._engine.generate(shared, sampling) if shared else []
        completions = [
            self._cut(completion, request.max_tokens)
            for request, group in zip(shared, groups, strict=True)
            for completion in group.completions
        ]
        return dict(zip(requests, completions, strict=True))

    def abandon(self) -> int:
        """Do nothing: no turn is under way between two calls."""
        return 0

    def _cut(self, completion: Completion, length: int | None) -> Completion:
        """Cut a completion to its request's length; later tokens change nothing before them."""
        if length is None or len(completion.token_ids) <= length:
            return completion
        tokens = completion.token_ids[:length]
        text = self._family.chat.completion_text(tokens.tolist())
        logprobs = completion.logprobs[:length]
        return replace(completion, token_ids=tokens, logprobs=logprobs, text=text, truncated=True)
