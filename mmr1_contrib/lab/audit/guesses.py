"""Known mistakes: which of them gives the run's number, and which this step cannot tell.

A mistake is named only if its number equals the run's and differs from the sound one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from mmr1_contrib.lab.audit import formulas
from mmr1_contrib.lab.audit.formulas import AGG_MODES, ESTIMATORS, AdamW
from mmr1_contrib.lab.audit.recipe import Recipe
from mmr1_contrib.lab.audit.recompute import Recomputed
from mmr1_contrib.lab.audit.step_file import (
    LADDER,
    Finding,
    StepFile,
    Tolerance,
    allowed,
    difference,
)

Guess = Callable[[], torch.Tensor]
COARSE = 0.01
"""Tolerance of gradients that a step which passes confesses."""
RUNGS = {rung.name: rung for rung in LADDER}


def guess(finding: Finding, run: StepFile, own: Recomputed) -> str | None:
    """Return the known mistake that reproduces the run's number; None if none does.

    Args:
        finding: The first difference.
        run: The recorded step.
        own: The recomputed step.
    """
    of_norms = finding.name in ("param/grad_norm", "param/delta_norm")
    if of_norms and (found := _pattern_of_norms(finding, run, own)):
        return found
    if finding.name == "media/patch_mean":
        return _pattern_of_patches(run, own)
    if finding.name not in GUESSES or finding.name not in run.tensors:
        return None
    theirs, sound = run.tensors[finding.name], own.file.tensors[finding.name]
    part = slice(None) if finding.step is None else slice(finding.step, finding.step + 1)
    for mistake, compute in GUESSES[finding.name](run, own, finding.step):
        value = compute()
        same = _close(finding.name, value[part], theirs[part])
        if same and not _close(finding.name, value[part], sound[part]):
            return mistake
    if finding.name == "token/advantage":
        return _constant_shift(run, own)
    return None


def cannot_tell(
    own: Recomputed, tolerances: Mapping[tuple[str, int | None], Tolerance]
) -> Iterator[str]:
    """Name what this step is no evidence of: mistakes that would give it the same numbers."""
    recipe, tensors = own.recipe, own.file.tensors
    sound = tensors["token/advantage"]
    if not sound.any():
        yield "anything of advantages: the rewards of each prompt are equal"
    else:
        mistakes = _advantages(own.file, own, None)
        unseen = [word for word, value in mistakes if _close("token/advantage", value(), sound)]
        if unseen := [word for word in unseen if word not in _same_formula(recipe)]:
            yield f"in advantages: {', '.join(unseen)}"
    weights = tensors["token/weight"]
    same = [mode for mode in AGG_MODES if _close("token/weight", _weights(own, mode), weights)]
    if others := [m for m in same if m != recipe.get("algorithm.loss.agg_mode")]:
        yield f"the length normaliser {', '.join(others)} (completions are equally long)"
    if not own.losses:
        return
    losses = _total_losses(own, recipe)
    for word, changed in _recipes(recipe):
        if _close("update/loss", _total_losses(own, changed), losses):
            yield word
    norms = tensors.get("update/grad_norm")
    if norms is not None and float(norms.max()) <= recipe.get("optimizer.max_grad_norm"):
        yield "the clip of the gradient: its norm is smaller"
    gradients = [t.relative for (name, _), t in tolerances.items() if name == "param/grad_norm"]
    if max(gradients, default=0.0) > COARSE:
        yield f"a gradient that is off by less than {max(gradients):.0%}: rounding decides as much"


def _same_formula(recipe: Recipe) -> tuple[str, ...]:
    """Mistakes that are what the recipe asks for."""
    scale = recipe.get("algorithm.advantage.scale_rewards")
    return {
        "grpo": {
            "group": ("divided by the deviation",),
            "batch": ("the deviation of the whole batch",),
            "none": ("not divided by the deviation",),
        }.get(scale, ()),
        "rloo": ("leave-one-out",),
    }.get(recipe.get("algorithm.advantage.type"), ())


def _close(name: str, left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.shape != right.shape:
        return False
    return bool((difference(left, right).flatten() <= allowed(RUNGS[name], right)).all())


# Rows and tokens ---------------------------------------------------------------------------------


def _masks(run: StepFile, own: Recomputed, step: int | None) -> Iterator[tuple[str, Guess]]:
    mask, lengths = own.file.tensors["token/mask"], own.file.lengths
    ends = torch.tensor(lengths).cumsum(0)
    starts = ends - torch.tensor(lengths)

    def without(places: torch.Tensor) -> torch.Tensor:
        out = mask.clone()
        out[places] = 0
        return out

    yield "the first token of each completion is left out", lambda: without(starts)
    yield "the last token of each completion is left out", lambda: without(ends - 1)
    if (cut := run.tensors.get("row/truncated")) is not None:
        of_tokens = cut.repeat_interleave(torch.tensor(lengths))
        yield "truncated completions are left out", lambda: mask * (1 - of_tokens)
    yield "invalid or truncated completions count", lambda: torch.ones_like(mask)


def _logprobs(run: StepFile, own: Recomputed, step: int | None) -> Iterator[tuple[str, Guess]]:
    policy = own.models[0]

    @torch.no_grad()
    def scored(
        alter: Any = None,
        temperature: float | None = None,
        blind: bool = False,
        forbidden: Sequence[int] = run.manifest.get("forbidden", ()),
        whole: bool = False,
    ) -> Any:
        rows = torch.split(run.tensors["token/ids"], run.lengths)
        everywhere = [None] * len(run.lengths)
        with policy.blind() if blind else nullcontext():
            return torch.cat(
                [
                    policy.score(own.prompts[p], ids, forbidden, kept, alter, temperature).logp
                    for p, ids, kept in zip(
                        run.prompts, rows, everywhere if whole else run.kept, strict=True
                    )
                ]
            )

    yield "temperature 1", lambda: scored(temperature=1.0)
    yield "tokens that are never sampled keep their probability", lambda: scored(forbidden=())
    if "token/kept" in run.tensors:
        yield "over all ids, and not over those that were kept", lambda: scored(whole=True)
    if any(prompt.inputs for prompt in own.prompts):
        yield "the model does not see the image", lambda: scored(blind=True)
        yield "the image is grey (all pixels 0)", lambda: scored(alter=torch.zeros_like)
        yield "the patches of the image in reverse", lambda: scored(alter=lambda p: p.flip(0))


def _advantages(run: StepFile, own: Recomputed, step: int | None) -> Iterator[tuple[str, Guess]]:
    r, counted = own.scored.rewards, own.scored.counted
    deviation = r.std(1, keepdim=True) + formulas.EPSILON
    centred = r - r.mean(1, keepdim=True)
    sound = own.file.tensors["token/advantage"]

    def of(values: torch.Tensor) -> Guess:
        rows = zip(values.flatten(), counted, strict=True)
        return lambda: torch.cat([(value * mask).float() for value, mask in rows])

    yield "the mean is not subtracted", of(r / deviation)
    yield "not divided by the deviation", of(centred)
    yield "divided by the deviation", of(centred / deviation)
    biased = r.std(1, keepdim=True, correction=0) + formulas.EPSILON
    yield "the deviation of the population (n, not n - 1)", of(centred / biased)
    yield "the deviation of the whole batch", of(centred / (r.std() + formulas.EPSILON))
    yield "leave-one-out", of(centred * r.shape[1] / (r.shape[1] - 1))
    yield "the sign", lambda: -sound
    lengths = own.file.lengths
    for shift, word in ((1, "before"), (-1, "after")):
        moved = torch.split(sound, lengths)
        rolled = [moved[(row - shift) % len(moved)] for row in range(len(moved))]
        if len({*lengths}) == 1:
            yield (
                f"the advantage of the completion {word} it",
                lambda rolled=rolled: torch.cat(rolled),  # type: ignore[misc]
            )


def _constant_shift(run: StepFile, own: Recomputed) -> str | None:
    mask = own.file.tensors["token/mask"].bool()
    theirs, sound = run.tensors["token/advantage"][mask], own.file.tensors["token/advantage"][mask]
    shift = theirs - sound
    if len(shift) > 1 and float(shift.std()) < 1e-4 < abs(float(shift.mean())):
        return f"a constant {float(shift.mean()):+.3g} on every token"
    ratio = theirs[sound.abs() > 1e-6] / sound[sound.abs() > 1e-6]
    if len(ratio) > 1 and torch.allclose(theirs, sound * ratio.mean(), atol=1e-4):
        return f"every advantage times {float(ratio.mean()):.4g}"
    return None


def _weights(own: Recomputed, mode: str, whole: bool = False) -> torch.Tensor:
    """Token weights by another mode, over each mini-batch or over the whole rollout."""
    recipe, mask = own.recipe, own.file.tensors["token/mask"].bool()
    rows = torch.split(mask, own.file.lengths)
    prompts = own.file.prompts
    size = recipe.get("algorithm.ppo_mini_batch_size") or len({*prompts})
    limit = recipe.get("rollout.max_response_length")
    if whole:
        return formulas.token_weights(mode, rows, limit).float()
    parts: dict[int, list[torch.Tensor]] = {}
    for prompt, row in zip(prompts, rows, strict=True):
        parts.setdefault(prompt // size, []).append(row)
    return torch.cat([formulas.token_weights(mode, part, limit) for part in parts.values()]).float()


def _aggregations(run: StepFile, own: Recomputed, step: int | None) -> Iterator[tuple[str, Guess]]:
    for mode in AGG_MODES:
        yield f"agg_mode {mode}", lambda mode=mode: _weights(own, mode)  # type: ignore[misc]
        yield (
            f"agg_mode {mode} over the whole rollout",
            lambda mode=mode: _weights(own, mode, True),  # type: ignore[misc]
        )


# The update --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Changed:
    """A recipe with other values of some keys, or another sign of the KL coefficient."""

    recipe: Recipe
    keys: Mapping[str, Any]

    def applied(self) -> Recipe:
        tree: dict[str, Any] = {**self.recipe.tree}
        for key, value in self.keys.items():
            _set(tree, key.split("."), value)
        return replace(self.recipe, tree=tree)


def _set(tree: dict[str, Any], names: list[str], value: Any) -> None:
    if len(names) == 1:
        tree[names[0]] = value
        return
    inner = dict(tree.get(names[0]) or {})
    tree[names[0]] = inner
    _set(inner, names[1:], value)


def _recipes(recipe: Recipe) -> Iterator[tuple[str, Recipe]]:
    """Mistakes of the loss, as recipes."""
    loss = recipe.get("algorithm.loss")
    if "clip_ratio_low" in loss:
        wide = {f"algorithm.loss.clip_ratio_{side}": 1e9 for side in ("low", "high")}
        yield "the clip: no ratio leaves its bounds", _Changed(recipe, wide).applied()
        swapped = {
            "algorithm.loss.clip_ratio_low": loss["clip_ratio_high"],
            "algorithm.loss.clip_ratio_high": loss["clip_ratio_low"],
        }
        if loss["clip_ratio_low"] != loss["clip_ratio_high"]:
            yield "the order of the bounds of the clip", _Changed(recipe, swapped).applied()
    if recipe.get("algorithm.kl.type") in ("loss", "full"):
        for word, factor in (("the sign of the KL term", -1.0), ("the KL term", 0.0)):
            kl = factor * recipe.coefficients["kl"]
            yield word, replace(recipe, coefficients={**recipe.coefficients, "kl": kl})
    if recipe.get("algorithm.kl.type") == "loss":
        for estimator in ESTIMATORS:
            if estimator != recipe.get("algorithm.kl.estimator"):
                keys = {"algorithm.kl.estimator": estimator}
                yield f"the KL estimator {estimator}", _Changed(recipe, keys).applied()
    if recipe.get("algorithm.entropy") is not None:
        entropy = {**recipe.coefficients, "entropy": -recipe.coefficients["entropy"]}
        yield "the sign of the entropy bonus", replace(recipe, coefficients=entropy)


def _total_losses(own: Recomputed, recipe: Recipe, sign: float = 1.0) -> torch.Tensor:
    return torch.tensor(
        [
            sum(float((w * formulas.token_loss(recipe, x) * sign).sum()) for x, w in rows)
            for rows in own.losses
        ]
    )


def _losses(run: StepFile, own: Recomputed, step: int | None) -> Iterator[tuple[str, Guess]]:
    for word, recipe in _recipes(own.recipe):
        told = word.replace("the clip: no ratio leaves its bounds", "no clip")
        told = "no KL term" if word == "the KL term" else told
        yield told, lambda recipe=recipe: _total_losses(own, recipe)  # type: ignore[misc]
    yield "the sign of the loss", lambda: _total_losses(own, own.recipe, -1.0)
    if "token/weight" not in run.tensors:  # else they are compared themselves
        for mode in AGG_MODES:
            yield f"agg_mode {mode}", lambda mode=mode: _losses_by(own, mode)  # type: ignore[misc]


def _losses_by(own: Recomputed, mode: str) -> torch.Tensor:
    """Losses with the token weights of another mode."""
    limit = own.recipe.get("rollout.max_response_length")
    totals = []
    for rows in own.losses:
        weights = formulas.token_weights(mode, [x.counted for x, _ in rows], limit)
        of_rows = torch.split(weights, [len(x.counted) for x, _ in rows])
        terms = zip(rows, of_rows, strict=True)
        totals.append(
            sum(float((w * formulas.token_loss(own.recipe, x)).sum()) for (x, _), w in terms)
        )
    return torch.tensor(totals)


def _rates(run: StepFile, own: Recomputed, step: int | None) -> Iterator[tuple[str, Guess]]:
    sound, full = own.file.tensors["update/lr"], own.recipe.get("optimizer.lr")
    yield "no warm-up", lambda: torch.full_like(sound, full)
    taken = int(run.manifest.get("steps_before", 0))
    total = own.recipe.optimizer_steps
    for shift, word in ((1, "one step late"), (-1, "one step early")):
        yield (
            f"the schedule is {word}",
            lambda shift=shift: torch.tensor(  # type: ignore[misc]
                [
                    formulas.learning_rate(own.recipe, max(0, taken + k - shift), total)
                    for k in range(len(sound))
                ]
            ),
        )


def _optimizer(own: Recomputed) -> AdamW:
    assert own.first_step is not None
    return own.first_step[1]


def _deltas(own: Recomputed, optimizer: AdamW, factor: float) -> torch.Tensor | None:
    """Norms of the change of each parameter in the first optimizer step, ``[1, W]``."""
    if own.first_step is None or "update/lr" not in own.file.tensors:
        return None
    before, sound = own.first_step
    if not before:
        return None
    optimizer.state.update(sound.state)
    named = {}
    for name, (value, gradient) in before.items():
        named[name] = torch.nn.Parameter(value.clone())
        named[name].grad = gradient
    rate = float(own.file.tensors["update/lr"][0]) * factor
    _, changes = optimizer.step(named, rate)
    return torch.tensor([[changes[name] for name in named]])


def _changes(run: StepFile, own: Recomputed, step: int | None) -> Iterator[tuple[str, Guess]]:
    if step != 0:
        return  # a later step starts from parameters that the file does not hold
    settings = _optimizer(own).settings
    sound = own.file.tensors["param/delta_norm"]
    variants: Mapping[str, tuple[dict[str, Any], float]] = {
        "no clip of the gradient": ({"max_grad_norm": 1e9}, 1.0),
        "no weight decay": ({"weight_decay": 0.0}, 1.0),
        "ten times the learning rate": ({}, 10.0),
        "a tenth of the learning rate": ({}, 0.1),
        "betas 0.9, 0.95": ({"betas": (0.9, 0.95)}, 1.0),
        "betas 0.9, 0.99": ({"betas": (0.9, 0.99)}, 1.0),
    }
    for word, (change, factor) in variants.items():

        def compute(change: dict[str, Any] = change, factor: float = factor) -> torch.Tensor:
            first = _deltas(own, AdamW({**settings, **change}), factor)
            return sound if first is None else torch.cat([first, sound[1:]])

        yield word, compute


def _pattern_of_norms(finding: Finding, run: StepFile, own: Recomputed) -> str | None:
    """A factor that all parameters have in common, or parameters without a gradient."""
    step = finding.step or 0
    theirs, sound = run.tensors[finding.name][step], own.file.tensors[finding.name][step]
    names = run.manifest["parameters"]
    missing = [n for n, a, b in zip(names, theirs, sound, strict=True) if a == 0 < b]
    if missing:
        return f"{len(missing)} of {len(names)} parameters have none, such as {missing[0]}"
    both = (theirs > 0) & (sound > 1e-6)
    ratio = theirs[both] / sound[both]
    if len(ratio) > 1 and finding.name == "param/grad_norm":
        factor = float(ratio.mean())
        if float(ratio.std()) < abs(factor - 1) / 10:
            return f"every gradient times {factor:.3f}"
    return None


def _pattern_of_patches(run: StepFile, own: Recomputed) -> str | None:
    """Exchanged channels, another normalisation, or a resampled image."""
    theirs = run.tensors["media/patch_mean"].double()
    sound = own.file.tensors["media/patch_mean"].double()
    if theirs.shape != sound.shape:
        return None
    image = own.models[0].processor.image_processor
    mean, std = (torch.tensor(values).double() for values in (image.image_mean, image.image_std))
    for order in ((2, 1, 0), (1, 2, 0), (2, 0, 1)):
        if torch.allclose((theirs * std + mean)[:, order], sound * std + mean, atol=5e-3):
            return f"the channels in the order {order}"
    correlation = float(torch.corrcoef(torch.stack([theirs.flatten(), sound.flatten()]))[0, 1])
    if torch.allclose(_fitted(sound, theirs), theirs, atol=5e-3):
        return f"another normalisation (correlation {correlation:.3f})"
    kind = "an altered image" if correlation**2 > 0.5 else "another image"
    return f"{kind} (correlation {correlation:.3f})"


def _fitted(sound: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Return the sound means with the scale and shift of each channel that fit best."""
    spread = (sound - sound.mean(0)).square().sum(0).clamp(min=1e-12)
    scale = ((sound - sound.mean(0)) * (theirs - theirs.mean(0))).sum(0) / spread
    return (sound - sound.mean(0)) * scale + theirs.mean(0)


Mistakes = Callable[[StepFile, Recomputed, int | None], Iterator[tuple[str, Guess]]]
GUESSES: Mapping[str, Mistakes] = {
    "token/mask": _masks,
    "token/rollout_logp": _logprobs,
    "token/old_logp": _logprobs,
    "token/ref_logp": _logprobs,
    "token/advantage": _advantages,
    "token/weight": _aggregations,
    "update/loss": _losses,
    "update/lr": _rates,
    "param/delta_norm": _changes,
}
"""Known mistakes by the quantity at which they show."""
