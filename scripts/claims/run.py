"""Put a claim to the test: every arm with every seed, then its results, plot and page.

    scripts/claims/NAME/run.sh                  five seeds
    scripts/claims/NAME/run.sh --seeds 1
    scripts/claims/NAME/run.sh --quick          40 steps of one seed; writes no result

All arms run in one process, one after the other. A trial that is finished under ``--output`` is not
repeated, and one that was interrupted goes on. A cold start is shared by all claims.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from mmr1.files import atomic
from scripts.claims.claim import CLAIMS, Claim, Trial, load, names
from scripts.claims.page import table, write_all
from scripts.claims.results import Result, result_file
from scripts.claims.start.start import prepared

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
    results = [
        trial_result(claim, arm, seed, output / f"seed{seed}", args.name, args.quick)
        for seed in range(seeds)
        for arm in claim.arms
    ]
    if not args.quick:
        write_json(result_file(args.name), [asdict(result) for result in results])
        write_all()
    print("\n".join(table(claim, results)))


def trial_result(claim: Claim, arm: str, seed: int, folder: Path, name: str, quick: bool) -> Result:
    """Of one trial, run unless it is finished."""
    own = folder / name / arm
    done = own / "result.json"
    if not done.is_file():
        print(f"{name}: {arm}, seed {seed}", flush=True)
        commit = current_commit()
        start = prepared(folder / "start", seed)
        begin = time.process_time()
        measured = claim.run(Trial(arm, seed, own, start, quick))
        numbers = {key: rounded(value) for key, value in measured.numbers.items()}
        curve = [rounded(value) for value in measured.curve]
        seconds = round(time.process_time() - begin)
        write_json(done, asdict(Result(arm, seed, numbers, curve, seconds, commit)))
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
