"""Put a claim to the test: every arm with every seed, then its results, plot and page.

    scripts/claims/run.sh NAME                  five seeds
    scripts/claims/run.sh NAME --seeds 1
    scripts/claims/run.sh NAME --seeds 12 --add more seeds; the stored results are kept
    scripts/claims/run.sh NAME --quick          40 steps of one seed; keeps no result

``mmr1 compare`` runs the arms of ``claim.yaml``. What is finished under ``--output`` is not
repeated, and what was interrupted is continued. A cold start is shared by all claims.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from mmr1_contrib.lab.compare.plan import read_plan
from mmr1_contrib.lab.compare.trials import run_trials
from scripts.claims.claim import CLAIMS, claim_file, load, names
from scripts.claims.page import table, write_all
from scripts.claims.results import (
    Result,
    current_commit,
    read_results,
    result_file,
    rounded,
    write_results,
)
from scripts.claims.start.start import prepared
from scripts.claims.sums import sums
from scripts.claims.tasks import build_once
from scripts.claims.training import QUICK


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=names())
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 0 on")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--add", action="store_true", help="run only seeds without a stored result")
    kind.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, default=Path("runs/claims"))
    args = parser.parse_args()
    claim = load(args.name)
    output = args.output / "quick" if args.quick else args.output
    stored = read_results(args.name) if args.add else []
    known = {result.seed for result in stored}
    seeds = [seed for seed in range(1 if args.quick else args.seeds) if seed not in known]
    if claim.base is None:  # what it measures is not a training run
        measure = import_module(f"scripts.claims.{args.name}.measure")
        results = measure.results(list(claim.arms), seeds, output, args.quick)
    else:
        results = compared(args.name, seeds, output, args.quick)
    results = [*stored, *results]
    write_results(output / "compared" / args.name / "result.json", results)
    if not args.quick:
        write_results(result_file(args.name), results)
        write_all()
    print("\n".join(table(claim, results)))


def compared(name: str, seeds: Sequence[int], output: Path, quick: bool) -> list[Result]:
    """The results of ``mmr1 compare``, from the data and cold starts of the seeds."""
    commit = current_commit()
    # Its paths lie under ``output``, and its configurations stay where they are.
    text = claim_file(name).read_text().replace("runs/claims", str(output))
    for seed in sorted({0, *seeds}):  # the plan is checked on seed 0
        start = prepared(output / f"seed{seed}/start", seed)
        if "/sums/text/" in text:
            sums.read_in_text(start, seed)
        elif "/sums/" in text:
            sums.prepared(start, seed)
        elif (CLAIMS / name / "data.py").is_file():
            build = import_module(f"scripts.claims.{name}.data").build
            build_once(output / f"seed{seed}" / name / "data", partial(build, start, seed))
    file = output / "compared" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.replace("base: ", f"base: {CLAIMS / name}/"))
    plan = read_plan([str(file), *(QUICK if quick else ())], [])
    (curve,) = plan.drawn
    return [
        Result(
            trial.arm,
            trial.seed,
            {key: rounded(value) for key, value in trial.values.items()},
            [rounded(value) for value in trial.curves[curve]],
            None,
            commit,
        )
        for trial in run_trials(plan, seeds, output / "compared" / name)
    ]


if __name__ == "__main__":
    main()
