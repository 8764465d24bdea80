"""Tables and plots of the stored results, and ``docs/claims.md``, which consists of them.

python -m scripts.claims.page            # write the page again
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib import pyplot as plt

from mmr1.files import atomic
from mmr1_contrib.lab.compare.plan import ComparisonFile
from mmr1_contrib.lab.compare.results import arms_table, draw_curves, formatted, save
from mmr1_contrib.lab.compare.statistics import with_seeds_needed
from scripts.claims.claim import CLAIMS, load, names
from scripts.claims.results import Result, difference_of, of_arm, read_results

DOCS = CLAIMS.parents[1] / "docs"
PAGE = DOCS / "claims.md"
IMAGES = DOCS / "images/claims"
INTRODUCTION = """\
# What papers claim, tested at 0.7M parameters

Each claim is about a method. We test it on a small task: real scans of the digits 0 to 4, unless
its README names another. The model has 0.7M parameters and trains on a CPU. **No published number
is reproduced here. A result at this size may not hold at 7B parameters.**

The README of each claim states the hypotheses, the measures and the smallest difference that
matters, all written before the runs. All arms of a claim use the same seeds. The tables give the
mean paired difference between two arms and its 95% interval (Student's t).

| verdict | meaning |
|---|---|
| holds | the whole interval is above 0, and its upper end reaches the smallest difference |
| does not hold | the whole interval is below the smallest difference |
| undecided | anything else, and any single seed |

An undecided hypothesis says how many seeds would decide it with a probability of 80%, if mean and
deviation are those measured.

A negative smallest difference means "not worse by more than this". The hypothesis then holds if
the whole interval is above it. Accuracy is measured on 500 held-out scans, or on 500 pictures like
those in training and 500 that look different.

    scripts/claims/run.sh format_and_accuracy --seeds 5
    scripts/claims/run.sh noisy_views --seeds 12 --add     # keeps the stored results

RL uses a learning rate of 2e-4. Three trials of GRPO with seed 0 chose it before the runs: the
policy learned with 2e-4, learned nothing in 20 steps with 5e-4, and collapsed with 1e-3 (after a
cold start of 80 steps). `python -m scripts.claims.page` writes this page from the stored results.
"""


def page() -> str:
    """All of ``docs/claims.md``."""
    parts = [INTRODUCTION, "\n".join(summary()), *("\n".join(section(name)) for name in names())]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def summary() -> Iterator[str]:
    yield "| claim | source | seeds | at 0.7M parameters |"
    yield "|---|---|---|---|"
    for name in names():
        claim, results = load(name), read_results(name)
        seeds = len({result.seed for result in results})
        found = tally(claim, results) if results else "not run yet"
        yield f"| [{claim.title}](#{anchor(claim.title)}) | {claim.source} | {seeds} | {found} |"


def tally(claim: ComparisonFile, results: Sequence[Result]) -> str:
    """``1 of 4 hypotheses holds, 2 undecided``: one that fails does not sink those that hold."""
    found = [difference_of(results, hypothesis)[1] for hypothesis in claim.hypotheses]
    hold, undecided = found.count("holds"), found.count("undecided")
    noun = "hypothesis" if len(found) == 1 else "hypotheses"
    counted = f"{hold} of {len(found)} {noun} {'holds' if hold == 1 else 'hold'}"
    return f"{counted}, {undecided} undecided" if undecided else counted


def anchor(title: str) -> str:
    """The anchor that Markdown makes of a heading of letters, digits, spaces and hyphens."""
    return title.lower().replace(" ", "-")


def section(name: str) -> Iterator[str]:
    claim, results = load(name), read_results(name)
    yield f"## {claim.title}\n"
    if results:
        yield f"**{tally(claim, results)}.**"
    yield f"{claim.sentence} {claim.source}. How it is tested: `scripts/claims/{name}/README.md`."
    yield ""
    if not results:
        yield "It has not been run yet."
        return
    yield from table(claim, results)
    yield ""
    if claim.plot is not None:
        yield f"![{claim.plot.label} of each arm](images/claims/{name}.png)\n"
    yield facts(results)


def facts(results: Sequence[Result]) -> str:
    commits = sorted({result.commit for result in results})
    known = [r.cpu_seconds for r in results if r.cpu_seconds is not None]
    each = f" of {fmean(known):.0f} CPU seconds each on average" if known else ""
    count = f"{len(results)} trials{each}"
    return f"{count}, at commit {', '.join(f'`{commit}`' for commit in commits)}."


def table(claim: ComparisonFile, results: Sequence[Result]) -> Iterator[str]:
    """Lines of Markdown: the arms, then the hypotheses."""
    values = {(a, m): of_arm(results, a, m) for a in claim.arms for m in claim.shown}
    yield from arms_table(list(claim.arms), claim.shown, values)
    yield ""
    yield "| hypothesis | difference (95%) | smallest that matters | seeds | |"
    yield "|---|---|---|---|---|"
    for hypothesis in claim.hypotheses:
        difference, found = difference_of(results, hypothesis)
        measured = formatted(difference, sign="+")
        smallest, seeds = f"{hypothesis.smallest:g}", str(difference.seeds)
        decided = with_seeds_needed(found, difference, hypothesis.smallest)
        yield f"| {' | '.join([hypothesis.text, measured, smallest, seeds, decided])} |"


def write_plot(path: Path, claim: ComparisonFile, results: Sequence[Result]) -> None:
    """The mean curve of each arm, with its interval over the seeds."""
    assert claim.plot is not None
    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    draw_curves(axes, {arm: [r.curve for r in results if r.arm == arm] for arm in claim.arms})
    axes.set(xlabel=claim.plot.over, ylabel=claim.plot.label)
    if claim.plot.axis:
        axes.set_xticks(range(1, len(claim.plot.axis) + 1), claim.plot.axis)
    save(figure, path)


def write_all() -> None:
    """The plots of all claims that have results, and the page."""
    for name in names():
        claim, results = load(name), read_results(name)
        if results and claim.plot is not None:
            write_plot(IMAGES / f"{name}.png", claim, results)
    with atomic(PAGE) as file:
        file.write(page())


if __name__ == "__main__":
    write_all()
