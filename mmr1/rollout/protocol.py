"""One protocol for everything that samples completions: submit, poll, load, cancel, probe, close.

What is submitted in one call runs together, so results do not depend on when ``poll`` is called. An
engine of several layers is an engine over an engine: conversations over what samples their turns,
that over a process or actors in which it lives.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from mmr1.config import SamplingConfig
from mmr1.types import Completion, Prompt, RolloutGroup


@dataclass(frozen=True, slots=True)
class Request:
    """Sample a completion of one prompt for each seed, from one distribution.

    Attributes:
        max_tokens: Limit of these completions, where that is less than ``sampling.max_tokens``.
    """

    prompt: Prompt
    seeds: tuple[int, ...]
    sampling: SamplingConfig
    max_tokens: int | None = None

    @property
    def limit(self) -> int:
        """Tokens of a completion, at most."""
        own = self.sampling.max_tokens
        return own if self.max_tokens is None else min(own, self.max_tokens)


@dataclass(frozen=True, slots=True)
class Finished:
    """The completion of seed ``index`` of a ticket.

    Attributes:
        prompt: Prompt that it continues, where an environment has added to the prompt of the
            request.
    """

    ticket: int
    index: int
    completion: Completion
    prompt: Prompt | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """A prompt as the engine feeds it to its model.

    Attributes:
        prompt_ids: Token ids with the placeholders expanded.
        grids: ``(t, h, w)`` of each medium, in patches; empty where no grid describes them.
    """

    prompt_ids: tuple[int, ...]
    grids: tuple[tuple[int, int, int], ...]


class Engine(Protocol):
    """Samples completions with the weights that it was last given."""

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """Take requests in; a ticket for each, unlike any other that is under way."""
        ...

    def poll(self, wait_s: float = 0.0) -> list[Finished]:
        """Sample on until something has finished, or for so many seconds; what has finished.

        One that samples to the end returns all that it was given by one ``submit``. Log-probs are
        those of the sampling distribution.
        """
        ...

    def load(self, weights: Any, version: int) -> None:
        """Take new weights and drop what they make stale. Completions under way continue with them.

        Args:
            weights: Weights by their names in the transformers model, or those that
                ``Policy.weights`` of ranks gives.
        """
        ...

    def cancel(self) -> int:
        """Drop all that is under way; returns how many of its tokens were sampled."""
        ...

    def probe(self, prompts: Sequence[Prompt]) -> list[Probe]:
        """Show how the engine reads these prompts, for the parity check."""
        ...

    def close(self) -> None:
        """Free the engine; safe to call twice."""
        ...


class RestingEngine(Protocol):
    """An engine that gives up its memory while idle."""

    def rest(self) -> None:
        """Give up weights and caches; those that are sent next, and ``submit``, take it back."""
        ...


def complete(engine: Engine, requests: Sequence[Request]) -> list[RolloutGroup]:
    """Submit, wait for all, and put them in order: for whoever has nothing else to do.

    If it fails, nothing stays under way.
    """
    try:
        places = {ticket: place for place, ticket in enumerate(engine.submit(requests))}
        rows = [dict[int, Finished]() for _ in requests]
        missing = sum(len(request.seeds) for request in requests)
        while missing:
            for ended in engine.poll(1.0):
                rows[places[ended.ticket]][ended.index] = ended
                missing -= 1
    except BaseException:
        with suppress(Exception):  # the engine may be what failed
            engine.cancel()
        raise
    return [
        group_of(request.prompt, [row[i] for i in range(len(request.seeds))])
        for request, row in zip(requests, rows, strict=True)
    ]


def group_of(prompt: Prompt, ended: Sequence[Finished]) -> RolloutGroup:
    """The completions of one prompt, and what an environment made of that, if there is one.

    Raises:
        ValueError: If the environment began completions of one prompt with different texts.
    """
    begun = [e.prompt or prompt for e in ended if e.completion.failure is None] or [prompt]
    if any(other.text != begun[0].text for other in begun):
        raise ValueError(
            f"record '{prompt.sample.id}': the environment's reset returned different texts for "
            "completions of one prompt, which are compared with each other; let what it returns "
            "depend on the record alone"
        )
    return RolloutGroup(begun[0], tuple(e.completion for e in ended))


_DRAWS = 1_000_000  # more than a step can have: tells repeats within a draw from other draws


def requests_for(
    prompts: Sequence[Prompt],
    n: int,
    sampling: SamplingConfig,
    run_seed: int,
    step: int,
    draw: int = 0,
) -> list[Request]:
    """``n`` completions of each prompt, seeded by run, step, prompt and draw."""
    seeds = prompt_seeds(prompts, run_seed, step, draw)
    return [
        Request(prompt, tuple(range(seed, seed + n)), sampling)
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]


def prompt_seeds(prompts: Sequence[Prompt], run_seed: int, step: int, draw: int = 0) -> list[int]:
    """The seed of each prompt's first completion; those of the others follow it.

    A small dataset may bring a prompt twice: it is then sampled anew, not repeated.
    """
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
