"""Probe whether completions of a model can share their prompt, by the numbers of a twin.

Packed and alone must be equal in float32: log-probs of all completion tokens and every gradient.
In bfloat16 no limit separates a right forward from a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import pad

from mmr1.trainer.forward.any_model.forward import (
    Verdict,
    by_kind,
    install,
    modules_of,
    pack_text,
    run_packed,
)
from mmr1.trainer.forward.any_model.layout import NotSharedError
from mmr1.trainer.forward.any_model.twin import twins
from mmr1.trainer.forward.sequences import GroupInput
from mmr1.vision.families.family import ReadPrompt
from mmr1.vision.families.rows import of_tokens

LOGPROB_GAP = 1e-4
"""The most of an equal forward was 2.5e-5, the least of a wrong one 2.6e-4 nats."""

GRADIENT_GAP = 1e-3
"""Of the largest gradient."""


def probe(model_class: Any, config: Any, groups: Sequence[GroupInput] = ()) -> Verdict:
    """Compare the forwards of a twin of the model.

    Args:
        model_class: That of the model.
        config: Its configuration.
        groups: What the model's own processor makes of prompts, with completions; without any, a
            text of any tokens.
    """
    why = "no small model of its class can be built and run"
    for twin in twins(model_class, config, bool(groups), narrow_tower=not groups):
        try:
            given = list(groups) or _any_text()
            alone = _Scores.of(twin, [_alone(twin, group) for group in given])
        except Exception as error:
            why = f"a small model of its class does not run alone ({told(error)})"
            continue
        return _compared(twin, given, alone)
    return Verdict("padded", why)


def told(error: Exception) -> str:
    """An error on one line."""
    first = (str(error).strip().splitlines() or [""])[0]
    return (
        first[:160]
        if isinstance(error, NotSharedError)
        else f"{type(error).__name__}: {first[:160]}"
    )


@dataclass(frozen=True, slots=True)
class _Scores:
    """Log-probs of all completion tokens, and the gradients of a sum of them."""

    logprobs: torch.Tensor
    gradients: Mapping[str, torch.Tensor]

    @staticmethod
    def of(model: Any, logprobs: Sequence[torch.Tensor]) -> _Scores:
        every = torch.cat(list(logprobs))
        weights = torch.linspace(-1, 2, len(every))
        model.zero_grad(set_to_none=True)
        (every * weights).sum().backward()
        named = model.named_parameters()
        return _Scores(every.detach(), {n: p.grad for n, p in named if p.grad is not None})

    def gaps(self, other: _Scores) -> tuple[float, float]:
        """Largest difference of log-probs, and of gradients as a share of the largest."""
        largest = max(float(g.abs().max()) for g in self.gradients.values())
        differences = (
            float((other.gradients[name] - g if name in other.gradients else g).abs().max())
            for name, g in self.gradients.items()
        )
        gap = float((self.logprobs - other.logprobs).abs().max())
        return gap, max(differences) / max(largest, 1e-12)


def _compared(twin: Any, groups: Sequence[GroupInput], alone: _Scores) -> Verdict:
    if sees := _sees_later(twin, groups):
        return Verdict("refused", sees)
    try:
        own = _alone_at_first(twin, groups)
        install(twin)
        if not torch.equal(own, _alone_at_first(twin, groups)):
            return Verdict("padded", "with our attention before its own it computes otherwise")
        packed, calls = _packed(twin, groups)
        gaps = alone.gaps(_Scores.of(twin, packed))
        if not (gaps[0] <= LOGPROB_GAP and gaps[1] <= GRADIENT_GAP):
            why = f"packed and alone differ by {gaps[0]:.1e} nats"
            return Verdict("padded", why, {}, *gaps)
        if moved := _siblings_move(twin, groups):
            return Verdict(
                "padded", f"completions move others' log-probs by {moved:.1e}", {}, *gaps
            )
        with torch.no_grad():
            _packed(twin.train(), groups)  # where it may ask for more
    except Exception as error:
        return Verdict("padded", told(error))
    return Verdict("packed", "", _calls_per_module(twin, calls), *gaps)


def _packed(model: Any, groups: Sequence[GroupInput]) -> tuple[list[torch.Tensor], dict[str, int]]:
    """Log-probs of each group, those of a kind in one forward; calls of a forward by class."""
    found: dict[int, torch.Tensor] = {}
    calls: dict[str, int] = {}
    for places in by_kind(groups):
        of_kind = [groups[i] for i in places]
        packed = pack_text(model, of_kind)
        out, counted = run_packed(model, packed, of_kind, model)
        calls = dict(counted)
        logprobs = out.logits[0].index_select(0, packed.rows).float().log_softmax(-1)
        logprobs = logprobs.gather(-1, packed.targets[:, None])[:, 0]
        sizes = [sum(map(len, group.completions)) for group in of_kind]
        found.update(zip(places, logprobs.split(sizes), strict=True))
    return [found[i] for i in range(len(groups))], calls


def _alone(model: Any, group: GroupInput) -> torch.Tensor:
    """Log-probs of each completion by the model's own forward, one by one."""
    return torch.cat([_own_logprobs(model, group, row) for row in group.completions])


def _own_logprobs(model: Any, group: GroupInput, row: torch.Tensor) -> torch.Tensor:
    prompt = len(group.prompt_ids)
    ids = torch.cat([group.prompt_ids, row])[None]
    given = {
        name: pad(tensor, (0, len(row))) if of_tokens(tensor, prompt) else tensor
        for name, tensor in group.arguments.items()
    }
    mask = torch.ones_like(ids)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False, **given).logits
    return logits[0, prompt - 1 : -1].float().log_softmax(-1).gather(-1, row[:, None])[:, 0]


@torch.no_grad()
def _alone_at_first(model: Any, groups: Sequence[GroupInput]) -> torch.Tensor:
    return _own_logprobs(model, groups[0], groups[0].completions[0])


@torch.no_grad()
def _sees_later(model: Any, groups: Sequence[GroupInput]) -> str:
    """The reason why a model is not causal, if another last token moves earlier log-probs."""
    for group in groups:
        row = group.completions[0]
        other = torch.cat([row[:-1], row[:1]])
        before, after = (_own_logprobs(model, group, r)[:-1] for r in (row, other))
        if (moved := float((before - after).abs().max())) > LOGPROB_GAP:
            return (
                "in transformers' own forward a token of a completion sees those that follow it "
                f"(another last token moves earlier log-probs by {moved:.1e})"
            )
    return ""


@torch.no_grad()
def _siblings_move(model: Any, groups: Sequence[GroupInput]) -> float:
    """The largest change of a completion's log-probs when all the others are changed."""
    changed = [
        replace(g, completions=(g.completions[0], *map(_changed, g.completions[1:])))
        for g in groups
    ]
    before, after = (_packed(model, given)[0] for given in (groups, changed))
    firsts = [len(group.completions[0]) for group in groups]
    moved = [(b[:n] - a[:n]).abs().max() for b, a, n in zip(before, after, firsts, strict=True)]
    return gap if (gap := float(max(moved))) > LOGPROB_GAP else 0.0


def _changed(row: torch.Tensor) -> torch.Tensor:
    """Another text, of the same tokens."""
    return row.roll(1)


def _calls_per_module(model: Any, calls: Mapping[str, int]) -> dict[str, int]:
    """The calls of a module by class, where all modules of a class are called equally often."""
    modules = modules_of(model, calls)
    return {n: c // modules[n] for n, c in calls.items() if modules[n] and c % modules[n] == 0}


def _any_text() -> list[GroupInput]:
    """Two prompts, of which one is shorter than the windows of a twin."""
    draw = torch.Generator().manual_seed(0)
    prompts = [torch.randint(5, 100, (length,), generator=draw) for length in (21, 5)]
    read = [ReadPrompt(ids, torch.arange(len(ids))[None], len(ids)) for ids in prompts]
    return with_completions(read, torch.arange(5, 100))


COMPLETIONS = ((6, 11, 2), (3, 12), (5, 3))
"""Lengths of what follows the prompts of a probe."""


def with_completions(prompts: Sequence[ReadPrompt], text: torch.Tensor) -> list[GroupInput]:
    """Prompts with completions of tokens drawn from those of ``text``, none of them twice."""
    draw = torch.Generator().manual_seed(0)

    def completion(length: int) -> torch.Tensor:
        return text[torch.randperm(len(text), generator=draw)[:length]]

    return [
        GroupInput(
            prompt.ids,
            prompt.positions,
            prompt.completion_start,
            (),
            tuple(map(completion, COMPLETIONS[index % len(COMPLETIONS)])),
            arguments=prompt.arguments,
        )
        for index, prompt in enumerate(prompts)
    ]
