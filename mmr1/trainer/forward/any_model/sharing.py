"""Choose the forward of a model without a family here: packed, if a probe allows it, or padded.

The probe compares numbers of a twin: packed and alone must be equal in float32, log-probs of all
completion tokens and every gradient. In bfloat16 no limit separates a right forward from a wrong
one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
import transformers
from torch.nn.functional import pad

import mmr1.attention
from mmr1.files import atomic
from mmr1.trainer.forward.any_model.forward import (
    Verdict,
    admit,
    by_kind,
    install,
    modules_of,
    pack_text,
    run_packed,
)
from mmr1.trainer.forward.any_model.layout import PrefixSharingError, SharedLayout
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
        model_class: Class of the model.
        config: Its configuration.
        groups: Inputs that the model's own processor makes of prompts, with completions; without
            any, a text of any tokens.
    """
    why = "no small model of its class can be built and run"
    for twin in twins(model_class, config, bool(groups), narrow_tower=not groups):
        try:
            given = list(groups) or _any_text()
            alone = _Scores.of(twin, [_alone(twin, group) for group in given])
        except Exception as error:
            why = f"a small model of its class does not run alone ({one_line(error)})"
            continue
        return _compared(twin, given, alone)
    return Verdict("padded", why)


def one_line(error: Exception) -> str:
    """An error on one line."""
    first = (str(error).strip().splitlines() or [""])[0]
    return (
        first[:160]
        if isinstance(error, PrefixSharingError)
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
        packed, layouts = _packed(twin, groups)
        gaps = alone.gaps(_Scores.of(twin, packed))
        if not (gaps[0] <= LOGPROB_GAP and gaps[1] <= GRADIENT_GAP):
            why = f"packed and alone differ by {gaps[0]:.1e} nats"
            return Verdict("padded", why, {}, True, *gaps)
        if moved := _siblings_move(twin, groups):
            return Verdict(
                "padded", f"completions move others' log-probs by {moved:.1e}", {}, True, *gaps
            )
        with torch.no_grad():
            _packed(twin.train(), groups)  # where it may ask for more
    except Exception as error:
        return Verdict("padded", one_line(error))
    causal = not any(layout.dense for layout in layouts)
    calls = _calls_per_module(twin, Counter(layouts[-1].calls))
    return Verdict("packed", "", calls, causal, *gaps)


def _packed(
    model: Any, groups: Sequence[GroupInput]
) -> tuple[list[torch.Tensor], list[SharedLayout]]:
    """Log-probs of each group, those of a kind in one forward, and the layouts of the forwards."""
    found: dict[int, torch.Tensor] = {}
    layouts = []
    for places in by_kind(groups):
        of_kind = [groups[i] for i in places]
        packed = pack_text(model, of_kind)
        out, layout = run_packed(model, packed, of_kind, model)
        layouts.append(layout)
        logprobs = out.logits[0].index_select(0, packed.rows).float().log_softmax(-1)
        logprobs = logprobs.gather(-1, packed.targets[:, None])[:, 0]
        sizes = [sum(map(len, group.completions)) for group in of_kind]
        found.update(zip(places, logprobs.split(sizes), strict=True))
    return [found[i] for i in range(len(groups))], layouts


def _alone(model: Any, group: GroupInput) -> torch.Tensor:
    """Log-probs of each completion by the model's own forward, one by one."""
    return torch.cat([_own_logprobs(model, group, row) for row in group.completions])


def _own_logprobs(model: Any, group: GroupInput, row: torch.Tensor) -> torch.Tensor:
    prompt = len(group.prompt_ids)
    ids = torch.cat([group.prompt_ids, row])[None]
    given = {
        name: pad(tensor, (0, len(row))) if of_tokens(name, tensor, prompt) else tensor
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


logger = logging.getLogger(__name__)

Wanted = Literal["auto", "packed", "padded"]


class Examples(Protocol):
    """Example prompts of a model that has no family here, for the probe."""

    @property
    def tokenizer(self) -> Any: ...

    def example_prompts(self) -> list[ReadPrompt]:
        """Prompts of all kinds that the model reads."""
        ...


def settle(model: Any, family: Examples, wanted: Wanted, name: str) -> None:
    """Probe a loaded model, and let it take packed sequences where that is correct.

    Args:
        name: Name of the model for errors: key and value.

    Raises:
        ValueError: Neither forward of the model is right, or it is to be packed and cannot be.
    """
    admit(model, None)
    verdict = verdict_on(type(model), model.config, family)
    if verdict.status == "refused":
        raise ValueError(f"{name}: {verdict.why}; such a model cannot be trained on completions")
    if verdict.status == "padded":
        if wanted == "packed":
            raise ValueError(
                f"model.sharing=packed and {name}: {verdict.why}; set model.sharing=auto, with "
                "which each completion computes its prompt again"
            )
        if wanted == "auto":
            logger.warning("%s: completions do not share their prompt: %s", name, verdict.why)
    elif wanted != "padded":
        admit(model, verdict)


def verdict_on(model_class: Any, config: Any, family: Examples) -> Verdict:
    """The verdict of the probe, which runs once for a class, its configuration and the versions."""
    file = _file(model_class, config)
    with suppress(OSError, ValueError, TypeError):
        return Verdict(**json.loads(file.read_text(encoding="utf-8")))
    verdict = probe(model_class, config, _examples(family))
    if verdict.status == "padded":  # perhaps for want of memory, say
        return verdict
    with suppress(OSError):  # a probe is a matter of seconds
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic(file) as out:
            json.dump(asdict(verdict), out)
    return verdict


def _examples(family: Examples) -> list[GroupInput]:
    tokenizer = family.tokenizer
    special = {*tokenizer.get_added_vocab().values(), *tokenizer.all_special_ids}
    text = [token for token in range(min(len(tokenizer), 1000)) if token not in special]
    return with_completions(family.example_prompts(), torch.tensor(text))


_OF_FILES = {"_name_or_path", "dtype", "transformers_version"}


def _file(model_class: Any, config: Any) -> Path:
    """The file of the verdict on a class and configuration."""
    known = {
        "class": f"{model_class.__module__}.{model_class.__qualname__}",
        "versions": (transformers.__version__, torch.__version__, _code()),
        "configuration": {n: v for n, v in config.to_dict().items() if n not in _OF_FILES},
    }
    digest = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "mmr1" / "sharing" / f"{digest[:32]}.json"


@cache
def _code() -> str:
    """A digest of the code that a verdict is about."""
    files = (*sorted(Path(__file__).parent.glob("*.py")), Path(mmr1.attention.__file__))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
