"""The claims: each is a comparison, and where its arms are not one configuration, how they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from mmr1.compare.plan import ComparisonFile, read_comparison

CLAIMS = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Trial:
    """One arm with one seed.

    Attributes:
        folder: Where it may write; ``folder.parent`` is shared by the arms of the seed.
        overrides: What the arm changes in the claim's ``rl.yaml``.
        quick: As short as shows learning; nothing of it is kept as a result.
    """

    arm: str
    seed: int
    folder: Path
    start: Path
    """Data, random model and cold start of the seed, see ``start.py``."""
    overrides: tuple[str, ...] = ()
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """What a trial gave: numbers by name, and what is drawn, at equal distances over the trial."""

    numbers: Mapping[str, float]
    curve: tuple[float, ...] = ()


def names() -> list[str]:
    """The folders that hold a claim."""
    return sorted(path.parent.name for path in CLAIMS.glob("*/claim.yaml"))


def claim_file(name: str) -> Path:
    """Raises ValueError for a name that no claim has."""
    if name not in names():
        raise ValueError(f"there is no claim '{name}'; there are {', '.join(names())}")
    return CLAIMS / name / "claim.yaml"


def load(name: str) -> ComparisonFile:
    """Raises ValueError for a name that no claim has."""
    return read_comparison(claim_file(name))


def trial_of(name: str) -> Callable[[Trial], Measured]:
    """Runs an arm of a claim that has data, stages or numbers of its own."""
    run: Callable[[Trial], Measured] = import_module(f"scripts.claims.{name}.trial").run
    return run
