"""The claims: each is a comparison, whose data a script may make."""

from __future__ import annotations

from pathlib import Path

from mmr1_contrib.lab.compare.plan import ComparisonFile, read_comparison

CLAIMS = Path(__file__).parent


def names() -> list[str]:
    """The folders that hold a claim."""
    return sorted(path.parent.name for path in CLAIMS.glob("*/claim.yaml"))


def claim_file(name: str) -> Path:
    """The file of a claim. Raises ValueError for an unknown name."""
    if name not in names():
        raise ValueError(f"there is no claim '{name}'; there are {', '.join(names())}")
    return CLAIMS / name / "claim.yaml"


def load(name: str) -> ComparisonFile:
    """Read a claim. Raises ValueError for an unknown name."""
    return read_comparison(claim_file(name))
