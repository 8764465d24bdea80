"""The checks: each asks one thing of an engine, and measures it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from mmr1.trainer.sampling.sight import LEAST_MOVE, OTHER_PICTURES
from mmr1.trainer.sampling.views import under
from mmr1.types import Completion, Message, Sample, TextPart
from mmr1_contrib.lab.audit.formulas import Cut
from mmr1_contrib.lab.audit.recompute import SLACK
from mmr1_contrib.lab.conformance.bench import TOKENS, Bench, Shown

HOT = 5.0
"""A temperature at which every id is likely."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a check.

    Attributes:
        passed: None if the check does not apply to this model.
        measured: Figures, in words.
    """

    passed: bool | None
    measured: str


def prompts_read_alike(bench: Bench) -> Verdict:
    """Compare token ids and grids with the processor's."""
    differing = []
    for kind, shown in bench.prompts.items():
        (probe,) = bench.engine.probe([shown.prompt])
        grids = tuple(map(tuple, shown.read.grids.tolist()))
        same_grids = not probe.grids or probe.grids == grids
        if probe.prompt_ids != tuple(shown.read.ids.tolist()) or not same_grids:
            differing.append(kind)
    count = f"{len(bench.prompts)} kinds of prompts"
    return Verdict(not differing, f"{count}; other ids or grids: {', '.join(differing) or 'none'}")


def greedy(bench: Bench) -> Verdict:
    """Check that each greedy token is the most probable one, up to ties."""
    below = []
    for shown in bench.prompts.values():
        (completion,) = bench.sampled(shown, (1,), temperature=0.0)
        scores = bench.scores(shown, completion, 1.0)
        below.append(scores.distribution.max(-1).values - scores.logp)
    most = bench.largest(torch.cat(below))
    return Verdict(most <= bench.tolerance, f"{most:.1e} nats below the most probable token")


def logprobs(bench: Bench) -> Verdict:
    """Compare the log-probs of sampled tokens with the reference's."""
    gaps = {
        kind: bench.gap(shown, bench.sampled(shown))
        for kind, shown in bench.prompts.items()
        if kind in ("text", "a picture", "turns")
    }
    return _within(bench, gaps)


def _within(bench: Bench, gaps: Mapping[str, float]) -> Verdict:
    worst = max(gaps, key=gaps.__getitem__)
    close = all(gap <= bench.tolerance for gap in gaps.values())  # false for NaN
    return Verdict(close, f"a gap of {gaps[worst]:.1e} nats ({worst}), {bench.tolerance:g} allowed")


def media_seen(bench: Bench) -> Verdict:
    """Check that other pictures in the same prompt move the first token's log-prob."""
    moves = {}
    for kind, shown in bench.prompts.items():
        if shown.prompt.media:
            (sound,) = bench.sampled(shown, (3,), max_tokens=1)
            others = [replace(shown, prompt=under(shown.prompt, o)) for o in OTHER_PICTURES]
            moves[kind] = max(_move(sound, *bench.sampled(o, (3,), max_tokens=1)) for o in others)
    if not moves:
        return Verdict(None, "the model takes no media")
    least = min(moves, key=moves.__getitem__)
    size = f"{moves[least]:.1e} nats" if moves[least] < torch.inf else "another token"
    return Verdict(moves[least] > LEAST_MOVE, f"{size} at least ({least})")


def _move(first: Completion, second: Completion) -> float:
    if first.token_ids[0] != second.token_ids[0]:
        return torch.inf
    return abs(float(first.logprobs[0] - second.logprobs[0]))


def in_order(bench: Bench, kinds: Sequence[str]) -> Verdict:
    """Compare log-probs of prompts whose media differ in order, or in time, alone."""
    if not bench.prompts.keys() >= set(kinds):
        return Verdict(None, "the model does not take such media")
    shown = [bench.prompts[kind] for kind in kinds]
    gaps = {
        kind: bench.gap(each, bench.sampled(each)) for kind, each in zip(kinds, shown, strict=True)
    }
    return _within(bench, gaps)


def rows_differ(bench: Bench) -> Verdict:
    """Check that completions of one prompt are drawn independently."""
    rows = bench.sampled(bench.prompts["text"], range(8), temperature=HOT)
    different = len({row.token_ids.tobytes() for row in rows})
    return Verdict(different == len(rows), f"{different} of {len(rows)} completions differ")


def seeds_repeat(bench: Bench) -> Verdict:
    """Check that the same seeds draw the same tokens."""
    first, second = (bench.sampled(_pictured(bench), range(5, 9)) for _ in range(2))
    return _equal(bench, first, second)


def first_row(bench: Bench) -> Verdict:
    """Check that a completion does not depend on how many others are sampled beside it."""
    alone, among = (bench.sampled(_pictured(bench), range(5, 5 + n)) for n in (1, 8))
    return _equal(bench, alone, among[:1])


def _pictured(bench: Bench) -> Shown:
    return bench.prompts.get("a picture", bench.prompts["text"])


def _equal(bench: Bench, first: tuple[Completion, ...], second: tuple[Completion, ...]) -> Verdict:
    """Equal tokens; in half precision another batch may turn a later one, so the first ones."""
    count = 1 if bench.config.rounds_logprobs else TOKENS
    same = [
        a.token_ids[:count].tolist() == b.token_ids[:count].tolist()
        for a, b in zip(first, second, strict=True)
    ]
    return Verdict(all(same), f"{sum(same)} of {len(same)} completions are equal")


def stops(bench: Bench) -> Verdict:
    """Check that completions end at a stop id or a stop string, and say if a limit ended them."""
    shown, stop_ids = bench.prompts["text"], set(bench.family.stop_ids)
    decode = bench.family.chat.completion_text
    rows = bench.sampled(shown, range(8), temperature=HOT, max_tokens=4 * TOKENS)
    wrong = sum(bool(stop_ids & set(row.token_ids[:-1].tolist())) for row in rows)
    wrong += sum(row.truncated == (int(row.token_ids[-1]) in stop_ids) for row in rows)
    text = decode(rows[0].token_ids.tolist())
    letters = [letter for letter in text[len(text) // 4 :] if letter.isalnum()]
    if letters:
        (row,) = bench.sampled(
            shown, (0,), temperature=HOT, max_tokens=4 * TOKENS, stop=(letters[0],)
        )
        whole, before = decode(row.token_ids.tolist()), decode(row.token_ids[:-1].tolist())
        wrong += row.truncated or letters[0] not in whole or letters[0] in before
    return Verdict(not wrong, f"{wrong} of {len(rows) + bool(letters)} completions end wrongly")


def support(bench: Bench) -> Verdict:
    """Check the ids that top-k, top-p and min-p keep, and log-probs over these."""
    shown, slack = _pictured(bench), SLACK[getattr(torch, bench.config.rollout_dtype)]
    wrong, gaps = 0, {}
    for name, cut in (
        ("top_k", Cut(0.0, 4, 1.0)),
        ("top_p", Cut(0.0, 0, 0.7)),
        ("min_p", Cut(0.3, 0, 1.0)),
    ):
        rows = bench.sampled(shown, **{name: getattr(cut, name)})
        if any(row.support is None for row in rows):
            return Verdict(False, f"completions do not say which ids {name} kept")
        for row in rows:
            assert row.support is not None
            sizes = row.support.sizes.tolist()
            kept = torch.split(torch.from_numpy(row.support.ids).long(), sizes)
            whole = bench.scores(shown, row).whole.double().cpu()
            fits = [cut.allows(logp, ids, slack) for logp, ids in zip(whole, kept, strict=True)]
            wrong += fits.count(False)
        gaps[name] = bench.gap(shown, rows)
    verdict = _within(bench, gaps)
    return Verdict(bool(verdict.passed) and not wrong, f"{wrong} wrong sets; {verdict.measured}")


def forbidden(bench: Bench) -> Verdict:
    """Check that placeholders are never drawn, and have no share of the log-probs."""
    shown, never = bench.prompts["text"], set(bench.family.forbidden_ids)
    rows = bench.sampled(shown, range(8), temperature=HOT, max_tokens=2 * TOKENS)
    drawn = sum(token in never for row in rows for token in row.token_ids.tolist())
    if drawn:
        return Verdict(False, f"{drawn} forbidden tokens were drawn")
    return _within(bench, {f"temperature {HOT:g}": bench.gap(shown, rows, HOT)})


def long_prompt(bench: Bench) -> Verdict:
    """Check that a prompt beyond the window is refused, or read whole, and never cut."""
    words = "red " * (2 * bench.config.rollout.max_model_len)
    shown = bench.render(Sample("long", (Message("user", (TextPart(words),)),), "red"))
    try:
        rows = bench.sampled(shown, (1,))
    except Exception as error:  # an engine's own
        bench.sampled(bench.prompts["text"])  # it goes on
        return Verdict(True, f"refused: {str(error).splitlines()[0][:60]}")
    verdict = _within(bench, {"read whole": bench.gap(shown, rows)})
    return verdict


def new_weights(bench: Bench) -> Verdict:
    """Check that weights that are loaded are used, and that completions say so."""
    shown = _pictured(bench)
    bench.shake()
    bench.load_shaken()
    rows = bench.sampled(shown)
    versions = {row.policy_version for row in rows}
    if versions != {bench.version}:
        return Verdict(False, f"completions of version {bench.version} say {versions}")
    return _within(bench, {"after the load": bench.gap(shown, rows)})


def failed_load(bench: Bench) -> Verdict:
    """Check that the old weights stay if new ones cannot be loaded."""
    before = bench.weights()
    bench.shake()
    weights = bench.weights()
    with torch.no_grad():  # an engine that shares the model has the old ones too
        for name, weight in bench.model.state_dict().items():
            weight.copy_(before.get(name, weight))
    last = list(weights)[-1]
    weights[last] = torch.zeros(3, 5, 7)
    failed, shown = "", _pictured(bench)
    try:
        bench.load(weights, bench.version + 1)
    except Exception as error:  # an engine's own
        failed = type(error).__name__
    rows = bench.sampled(shown)
    verdict = _within(bench, {"after the failure": bench.gap(shown, rows)})
    old = not failed or {row.policy_version for row in rows} == {bench.version}
    return Verdict(bool(verdict.passed) and old, f"{failed or 'no error'}; {verdict.measured}")


CHECKS: Mapping[str, Callable[[Bench], Verdict]] = {
    "prompts are read alike": prompts_read_alike,
    "greedy tokens are the best": greedy,
    "log-probs are the model's": logprobs,
    "the picture is seen": media_seen,
    "two pictures keep their order": partial(
        in_order, kinds=("two pictures", "two pictures, exchanged")
    ),
    "a video's frames and times": partial(
        in_order, kinds=("a video", "a video, reversed", "a video, faster")
    ),
    "rows differ": rows_differ,
    "a seed repeats": seeds_repeat,
    "one row is the first of eight": first_row,
    "stops": stops,
    "kept ids": support,
    "forbidden tokens": forbidden,
    "a long prompt is not cut": long_prompt,
    "new weights are used": new_weights,
    "a failed load keeps the old": failed_load,
}
"""What an engine must do, in the order of the checks: the last two change its weights."""
