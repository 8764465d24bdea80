"""Put a claim of a checkout to the test: every arm with every seed, then its results and page.

    scripts/claims/run.sh NAME                  five seeds
    scripts/claims/run.sh NAME --seeds 1
    scripts/claims/run.sh NAME --seeds 12 --add more seeds; the stored results are kept
    scripts/claims/run.sh NAME --quick          40 steps of one seed; keeps no result

``mmr1 compare`` runs the arms of ``claim.yaml``. What is finished under ``--output`` is not
repeated, and what was interrupted is continued. ``prepare.py`` in the folder of the claims makes
the data and cold starts of a seed. A claim that compares no runs has ``measure.py``, whose function
``trials`` measures its arms.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from mmr1.registry import import_file
from mmr1_contrib.lab.claims.claim import (
    Claim,
    Result,
    claim_file,
    claim_names,
    read_claim,
    result_file,
    write_results,
)
from mmr1_contrib.lab.claims.page import CLAIMS, table, write_all
from mmr1_contrib.lab.compare.plan import read_plan
from mmr1_contrib.lab.compare.trials import Trial, run_trials

QUICK = ("trainer.max_steps=40", "eval.limit=100")
"""Overrides of a quick run."""
CODE = ("mmr1", "mmr1_contrib", "datasets_prep", "scripts/claims")
"""What a result depends on."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=claim_names(CLAIMS))
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 0 on")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--add", action="store_true", help="run only seeds without a stored result")
    kind.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, default=Path("runs/claims"))
    args = parser.parse_args()
    claim = read_claim(CLAIMS / args.name)
    output = args.output / "quick" if args.quick else args.output
    stored = claim.results if args.add else []
    known = {result.seed for result in stored}
    seeds = [seed for seed in range(1 if args.quick else args.seeds) if seed not in known]
    results = [*stored, *_run(claim, seeds, output, args.quick)]
    write_results(output / "compared" / claim.name / "result.json", results)
    if not args.quick:
        write_results(result_file(claim.folder), results)
        write_all()
    print("\n".join(table(claim.comparison, results)))


def _run(claim: Claim, seeds: Sequence[int], output: Path, quick: bool) -> list[Result]:
    commit = current_commit()
    if claim.comparison.base is None:  # what it measures is not a training run
        measure = import_file(claim.folder / "measure.py")
        trials = measure.trials(list(claim.comparison.arms), seeds, output, quick)
    else:
        trials = _compared(claim, seeds, output, quick)
    return [_result(trial, commit) for trial in trials]


def _compared(claim: Claim, seeds: Sequence[int], output: Path, quick: bool) -> list[Trial]:
    """Run the comparison of a claim, from the data and cold starts of the seeds."""
    prepare = import_file(claim.folder.parent / "prepare.py").prepare
    for seed in sorted({0, *seeds}):  # the plan is checked on seed 0
        prepare(claim, seed, output)
    # Its paths are in ``output``, and its configurations stay where they are.
    text = claim_file(claim.folder).read_text().replace("runs/claims", str(output))
    file = output / "compared" / f"{claim.name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.replace("base: ", f"base: {claim.folder.resolve()}/"))
    plan = read_plan([str(file), *(QUICK if quick else ())], [])
    return run_trials(plan, seeds, output / "compared" / claim.name)


def _result(trial: Trial, commit: str) -> Result:
    """Return what is stored of a trial, which has one curve."""
    numbers = {name: _rounded(value) for name, value in trial.values.items()}
    (curve,) = trial.curves.values()
    return Result(trial.arm, trial.seed, numbers, [*map(_rounded, curve)], None, commit)


def _rounded(value: float) -> float:
    """Round to five significant digits."""
    return float(f"{value:.5g}")


def current_commit() -> str:
    """Return the commit of the running code, ending with ``+`` if it has changed since."""
    changes = ("status", "--porcelain", "--", *CODE, ":!scripts/claims/*/result.json")
    head, changed = (
        subprocess.run(["git", *command], capture_output=True, text=True, check=True).stdout.strip()
        for command in (("rev-parse", "HEAD"), changes)
    )
    return head[:12] + ("+" if changed else "")


if __name__ == "__main__":
    main()
