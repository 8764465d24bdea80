"""Protocols of rollout engines, which sample completions."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mmr1.config import SamplingConfig
from mmr1.environments.environment import Environment
from mmr1.types import Completion, Prompt, RolloutGroup
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import Medium

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Request:
    """Sample ``n`` completions of one prompt; completion i draws from ``seed + i``.

    Attributes:
        max_tokens: Of these completions, where that is less than ``sampling.max_tokens``.
    """

    prompt: Prompt
    n: int
    seed: int
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """A prompt as the engine feeds it to its model.

    Attributes:
        prompt_ids: Token ids with the placeholders expanded.
        grids: ``(t, h, w)`` of each medium, in patches; empty where no grid describes them.
    """

    prompt_ids: tuple[int, ...]
    grids: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request with its media prepared, in the order of the prompt's placeholders."""

    request: Request
    media: tuple[Medium, ...]


class RolloutEngine(Protocol):
    """Samples completions with the weights it was last given."""

    def generate(self, requests: Sequence[Request], sampling: SamplingConfig) -> list[RolloutGroup]:
        """One group per request, in order. Log-probs are those of the sampling distribution."""
        ...

    def load_weights(self, weights: Any, version: int) -> None:
        """Take over new weights and drop what they make stale.

        Args:
            weights: By names of the transformers model, or what ``Policy.weights`` of ranks gives.
        """
        ...

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        """Show how the engine reads these prompts, for the parity check."""
        ...

    def close(self) -> None:
        """Free the engine; safe to call twice."""
        ...


class StreamingEngine(Protocol):
    """An engine whose requests come with their media prepared, a chunk at a time."""

    def stream(
        self, chunks: Iterator[list[PreparedRequest]], sampling: SamplingConfig
    ) -> list[RolloutGroup]:
        """One group per request, in the order in which the requests came.

        An empty chunk says that nothing has come yet: the engine continues with what it has.
        """
        ...

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Take over new weights, by names of the transformers model."""
        ...

    def probe(self, prepared: Sequence[PreparedRequest]) -> list[Probe]:
        """See ``RolloutEngine.probe``."""
        ...

    def close(self) -> None:
        """Free the engine; safe to call twice."""
        ...


class TurnEngine(Protocol):
    """An engine that samples on while new requests come: the turns of conversations."""

    def advance(
        self,
        requests: Mapping[int, PreparedRequest],
        sampling: SamplingConfig,
        moment_s: float = 0.0,
    ) -> dict[int, Completion]:
        """Take requests of one completion in, sample on, and hand over what has ended.

        Returns before all have ended, so that what follows on one that has can come in meanwhile.

        Args:
            requests: By numbers that none under way has.
            moment_s: Sample on for so many seconds if nothing ends before.
        """
        ...

    def abandon(self) -> int:
        """Drop all turns under way; returns how many of their tokens were sampled."""
        ...


@runtime_checkable
class ConversingEngine(Protocol):
    """A rollout engine whose completions are conversations: the check of parity holds its own."""

    family: ModelFamily

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        """See :class:`RolloutEngine`."""
        ...

    def with_environment(self, environment: Environment, max_tokens_per_turn: int) -> RolloutEngine:
        """The same engine with another environment. Its conversations continue after a cut turn."""
        ...


class ReceivingEngine(Protocol):
    """An engine that is sent weights: the calls of vLLM's transfer, in their order."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Connect with the sender; an earlier connection is ended."""
        ...

    def start_weight_update(self) -> None:
        """Prepare to receive weights."""
        ...

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Read the weights that the sender sends now."""
        ...

    def finish_weight_update(self, version: int) -> None:
        """Sample with them, and drop what they make stale."""
        ...

    def abandon_weight_update(self) -> None:
        """Abort a transfer: end the connection, and be ready for another one."""
        ...


class SleepingEngine(Protocol):
    """An engine that gives up its memory while idle."""

    def sleep(self) -> None:
        """Give up weights and caches."""
        ...

    def wake_up(self, tag: str) -> None:
        """Take memory again: for ``weights``, which will be sent, then for ``kv_cache``."""
        ...


_DRAWS = 1_000_000  # more than a step can have: tells repeats within a draw from other draws


def requests_for(
    prompts: Sequence[Prompt], n: int, run_seed: int, step: int, draw: int = 0
) -> list[Request]:
    """``n`` completions of each prompt, seeded by run, step, prompt and draw.

    A small dataset may bring a prompt twice: it is then sampled anew, not repeated.
    """
    seeds = prompt_seeds(prompts, run_seed, step, draw)
    return [Request(prompt, n, seed) for prompt, seed in zip(prompts, seeds, strict=True)]


def prompt_seeds(prompts: Sequence[Prompt], run_seed: int, step: int, draw: int = 0) -> list[int]:
    """The seed of each prompt's first completion; see :func:`requests_for`."""
    repeats: Counter[str] = Counter()
    seeds = []
    for prompt in prompts:
        sample = prompt.sample.id
        seeds.append(request_seed(run_seed, step, sample, draw + _DRAWS * repeats[sample]))
        repeats[sample] += 1
    return seeds


def request_seed(run_seed: int, step: int, sample_id: str, draw: int = 0) -> int:
    """The seed of a prompt's completions: the same run, step and prompt draw the same tokens.

    ``draw`` tells draws within one step apart, where a small dataset brings a prompt again.

    >>> request_seed(0, 1, "a") == request_seed(0, 1, "a") != request_seed(0, 2, "a")
    True
    """
    again = f":{draw}" if draw else ""
    digest = hashlib.sha256(f"{run_seed}:{step}:{sample_id}{again}".encode()).digest()
    # 48 bits leave room to add the completion's index; vLLM takes seeds below 2**63.
    return int.from_bytes(digest[:6], "big")
