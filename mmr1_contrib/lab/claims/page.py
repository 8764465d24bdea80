"""Tables and plots of the stored results, and ``docs/claims.md``, which consists of them.

python -m mmr1_contrib.lab.claims.page            # in a checkout: write the page again
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib import pyplot as plt

from mmr1.files import atomic
from mmr1_contrib.lab.claims.claim import (
    Claim,
    Result,
    arm_estimate,
    claim_names,
    hypothesis_verdict,
    read_claim,
)
from mmr1_contrib.lab.compare.plan import ComparisonFile
from mmr1_contrib.lab.compare.results import arms_table, draw_curves, formatted, save
from mmr1_contrib.lab.compare.statistics import with_seeds_needed

CLAIMS = Path("scripts/claims")
PAGE = Path("docs/claims.md")
"""In the checkout that is the working directory."""


def page(folder: Path) -> str:
    """Return the page of the claims in a folder; ``introduction.md`` there begins it."""
    claims = [read_claim(folder / name) for name in claim_names(folder)]
    introduction = (folder / "introduction.md").read_text()
    parts = [introduction, "\n".join(summary(claims)), *map(section, claims)]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def summary(claims: Sequence[Claim]) -> Iterator[str]:
    """Yield the lines of the table of all claims."""
    yield "| claim | source | seeds | at 0.7M parameters |"
    yield "|---|---|---|---|"
    for claim in claims:
        comparison, results = claim.comparison, claim.results
        seeds = len({result.seed for result in results})
        found = tally(comparison, results) if results else "not run yet"
        title = f"[{comparison.title}](#{anchor(comparison.title)})"
        yield f"| {title} | {comparison.source} | {seeds} | {found} |"


def tally(comparison: ComparisonFile, results: Sequence[Result]) -> str:
    """Count the verdicts, such as ``1 of 4 hypotheses holds, 2 undecided``."""
    found = [hypothesis_verdict(results, hypothesis)[1] for hypothesis in comparison.hypotheses]
    hold, undecided = found.count("holds"), found.count("undecided")
    noun = "hypothesis" if len(found) == 1 else "hypotheses"
    counted = f"{hold} of {len(found)} {noun} {'holds' if hold == 1 else 'hold'}"
    return f"{counted}, {undecided} undecided" if undecided else counted


def anchor(title: str) -> str:
    """Return the anchor that Markdown makes of a heading of letters, digits, spaces, hyphens."""
    return title.lower().replace(" ", "-")


def section(claim: Claim) -> str:
    """Return the section of one claim."""
    return "\n".join(_section_lines(claim))


def _section_lines(claim: Claim) -> Iterator[str]:
    comparison, results = claim.comparison, claim.results
    readme = (claim.folder / "README.md").as_posix()
    yield f"## {comparison.title}\n"
    if results:
        yield f"**{tally(comparison, results)}.**"
    yield f"{comparison.sentence} {comparison.source}. How it is tested: `{readme}`."
    yield ""
    if not results:
        yield "It has not been run yet."
        return
    yield from table(comparison, results)
    yield ""
    if comparison.plot is not None:
        yield f"![{comparison.plot.label} of each arm](images/claims/{claim.name}.png)\n"
    yield facts(results)


def facts(results: Sequence[Result]) -> str:
    """Return the number of trials, their CPU time and their commits, as a sentence."""
    commits = sorted({result.commit for result in results})
    known = [r.cpu_seconds for r in results if r.cpu_seconds is not None]
    each = f" of {fmean(known):.0f} CPU seconds each on average" if known else ""
    count = f"{len(results)} trials{each}"
    return f"{count}, at commit {', '.join(f'`{commit}`' for commit in commits)}."


def table(comparison: ComparisonFile, results: Sequence[Result]) -> Iterator[str]:
    """Yield the lines of two Markdown tables: the arms, then the hypotheses."""
    values = {
        (arm, metric): arm_estimate(results, arm, metric)
        for arm in comparison.arms
        for metric in comparison.shown
    }
    yield from arms_table(list(comparison.arms), comparison.shown, values)
    yield ""
    yield "| hypothesis | difference (95%) | smallest that matters | seeds | |"
    yield "|---|---|---|---|---|"
    for hypothesis in comparison.hypotheses:
        difference, found = hypothesis_verdict(results, hypothesis)
        measured = formatted(difference, sign="+")
        smallest, seeds = f"{hypothesis.smallest:g}", str(difference.seeds)
        decided = with_seeds_needed(found, difference, hypothesis.smallest)
        yield f"| {' | '.join([hypothesis.text, measured, smallest, seeds, decided])} |"


def write_plot(path: Path, comparison: ComparisonFile, results: Sequence[Result]) -> None:
    """Draw the mean curve of each arm, with its interval over the seeds."""
    assert comparison.plot is not None
    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    draw_curves(axes, {arm: [r.curve for r in results if r.arm == arm] for arm in comparison.arms})
    axes.set(xlabel=comparison.plot.over, ylabel=comparison.plot.label)
    if comparison.plot.axis:
        axes.set_xticks(range(1, len(comparison.plot.axis) + 1), comparison.plot.axis)
    save(figure, path)


def write_all() -> None:
    """Write the plots of all claims that have results, and the page."""
    for name in claim_names(CLAIMS):
        claim = read_claim(CLAIMS / name)
        if claim.results and claim.comparison.plot is not None:
            images = PAGE.parent / "images/claims"
            write_plot(images / f"{name}.png", claim.comparison, claim.results)
    with atomic(PAGE) as file:
        file.write(page(CLAIMS))


if __name__ == "__main__":
    write_all()
