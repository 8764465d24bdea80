"""The data and cold starts of a claim's seed; those that several claims use are made once."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from mmr1.registry import import_file
from mmr1_contrib.lab.claims.claim import Claim, claim_file
from scripts.claims.start.start import prepared
from scripts.claims.sums import sums
from scripts.claims.tasks import build_once


def prepare(claim: Claim, seed: int, output: Path) -> None:
    """Make what the arms of a claim start from, unless it is there.

    Args:
        output: Folder of the claims' runs; the seed has a folder in it.
    """
    start = prepared(output / f"seed{seed}/start", seed)
    text = claim_file(claim.folder).read_text()
    if "/sums/text/" in text:
        sums.read_in_text(start, seed)
    elif "/sums/" in text:
        sums.prepared(start, seed)
    elif (data := claim.folder / "data.py").is_file():
        build = import_file(data).build
        build_once(output / f"seed{seed}" / claim.name / "data", partial(build, start, seed))
