"""Put a claim to the test: every arm with every seed, then its results, plot and page.

    scripts/claims/run.sh NAME                  five seeds
    scripts/claims/run.sh NAME --seeds 1
    scripts/claims/run.sh NAME --quick          40 steps of one seed; writes no result

A claim whose arms are one configuration (``base`` in its ``claim.yaml``) is run by
``mmr1 compare``, the others by their ``trial.py``. What is finished under ``--output`` is not
repeated, and what was interrupted is continued. A cold start is shared by all claims.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from mmr1.compare.plan import ComparisonFile, read_plan
from mmr1.compare.trials import run_trials
from mmr1.files import atomic
from scripts.claims.claim import CLAIMS, Trial, claim_file, load, names, trial_of
from scripts.claims.page import table, write_all
from scripts.claims.results import Result, result_file
from scripts.claims.start.start import prepared
from scripts.claims.sums import sums
from scripts.claims.training import QUICK

REPOSITORY = CLAIMS.parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=names())
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 0 on")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, default=Path("runs/claims"))
    args = parser.parse_args()
    claim = load(args.name)
    output = args.output / "quick" if args.quick else args.output
    seeds = 1 if args.quick else args.seeds
    if claim.base is None:
        results = list(tried(args.name, claim, seeds, output, args.quick))
    else:
        results = compared(args.name, seeds, output, args.quick)
    if not args.quick:
        write_json(result_file(args.name), [asdict(result) for result in results])
        write_all()
    print("\n".join(table(claim, results)))


def compared(name: str, seeds: int, output: Path, quick: bool) -> list[Result]:
    """The results of ``mmr1 compare``, from the cold starts of the seeds."""
    commit = current_commit()
    # Its paths lie under ``output``, and its configuration stays where it is.
    text = claim_file(name).read_text().replace("runs/claims", str(output))
    for seed in range(seeds):
        trial = Trial("", seed, output, prepared(output / f"seed{seed}/start", seed))
        if "/sums/text/" in text:
            sums.read_in_text(trial)
        elif "/sums/" in text:
            sums.prepared(trial)
    file = output / "compared" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text.replace("base: ", f"base: {CLAIMS / name}/", 1))
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


def tried(
    name: str, claim: ComparisonFile, seeds: int, output: Path, quick: bool
) -> Iterator[Result]:
    """The results of ``trial.py``: all arms in this process, one after the other."""
    for seed in range(seeds):
        for arm, overrides in claim.arms.items():
            own = output / f"seed{seed}" / name / arm
            start = output / f"seed{seed}/start"
            yield trial_result(name, Trial(arm, seed, own, start, tuple(overrides), quick))


def trial_result(name: str, trial: Trial) -> Result:
    """Of one trial, run unless it is finished."""
    done = trial.folder / "result.json"
    if not done.is_file():
        print(f"{name}: {trial.arm}, seed {trial.seed}", flush=True)
        commit = current_commit()
        prepared(trial.start, trial.seed)
        begin = time.process_time()
        measured = trial_of(name)(trial)
        numbers = {key: rounded(value) for key, value in measured.numbers.items()}
        curve = [rounded(value) for value in measured.curve]
        seconds = round(time.process_time() - begin)
        write_json(done, asdict(Result(trial.arm, trial.seed, numbers, curve, seconds, commit)))
    return Result(**json.loads(done.read_text()))


def rounded(value: float) -> float:
    return float(f"{value:.5g}")


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path) as file:
        file.write(json.dumps(value, indent=1) + "\n")


def current_commit() -> str:
    """Of the code that runs; ``+`` behind it where that code was changed since."""
    of_code = ("mmr1", "datasets_prep", "scripts/claims", ":!scripts/claims/*/result.json")
    head, changed = (
        subprocess.run(
            ["git", "-C", REPOSITORY, *command], capture_output=True, text=True, check=True
        ).stdout.strip()
        for command in (("rev-parse", "HEAD"), ("status", "--porcelain", "--", *of_code))
    )
    return head[:12] + ("+" if changed else "")


if __name__ == "__main__":
    main()
