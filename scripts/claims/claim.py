"""What a claim is: arms that are compared by seed, and hypotheses about their differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

CLAIMS = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Trial:
    """One arm with one seed.

    Attributes:
        folder: Where it may write; ``folder.parent`` is shared by the arms of the seed.
        quick: As short as shows learning; nothing of it is kept as a result.
    """

    arm: str
    seed: int
    folder: Path
    start: Path
    """Data, random model and cold start of the seed, see ``start.py``."""
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """What a trial gave: numbers by name, and what is drawn, at equal distances over the trial."""

    numbers: Mapping[str, float]
    curve: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """``measure`` is higher in the arm ``more`` than in ``less``.

    Attributes:
        text: As the claim's README has it.
        smallest: Smallest difference that would matter, in the measure's unit. Below 0: that
            ``more`` is not worse than ``less`` by as much.
    """

    text: str
    measure: str
    more: str
    less: str
    smallest: float


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of a paper, and how it is put to a test.

    Attributes:
        sentence: The claim in one sentence.
        source: The paper, as Markdown.
        arms: What each arm changes in the claim's ``rl.yaml``, in the order of the tables.
        run: Runs one trial.
        hypotheses: All have to hold.
        shown: Measures of the table, with their headings.
        curve: What ``Measured.curve`` is; empty without one.
        over: What the curve runs over.
    """

    title: str
    sentence: str
    source: str
    arms: Mapping[str, tuple[str, ...]]
    run: Callable[[Trial], Measured]
    hypotheses: tuple[Hypothesis, ...]
    shown: Mapping[str, str]
    curve: str = ""
    over: str = "tenths of the run"
    axis: tuple[str, ...] = field(default=())


def names() -> list[str]:
    """The folders that hold a claim."""
    return sorted(path.parent.name for path in CLAIMS.glob("*/claim.py"))


def load(name: str) -> Claim:
    """Raises ValueError for a name that is none."""
    if name not in names():
        raise ValueError(f"there is no claim '{name}'; there are {', '.join(names())}")
    claim: Claim = import_module(f"scripts.claims.{name}.claim").CLAIM
    return claim
