"""Seconds and memory of the commands of ``mmr1-data`` and of opening a dataset for training.

    python scripts/bench/data.py --records 20000 --before ../another/checkout

Makes a dataset of questions about pictures, several about each, and runs every command on it in
new processes. ``--before`` names a checkout of another version of this repository to compare with:
with ``--repeat 5`` both run five times, in turn, and the least of each counts.
Memory is that of all processes of a command together: shared pages count once (PSS).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

FEW = 4000
"""Rows of a dataset that is converted in the time that the command takes to start."""
REPOSITORY = Path(__file__).resolve().parents[2]
OPEN = """
import sys, time
from mmr1.config import DataConfig
from mmr1.data.sources import load_samples
begin = time.perf_counter()
samples = load_samples(sys.argv[1], DataConfig())
samples[len(samples) // 2]
print("seconds", time.perf_counter() - begin)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--share", type=int, default=4, help="records about one picture")
    parser.add_argument("--side", type=int, default=224, help="of a picture, in pixels")
    parser.add_argument("--before", type=Path, help="a checkout to compare with")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each; the least counts")
    parser.add_argument("--only", nargs="*", help="commands to run; default: all")
    parser.add_argument("--folder", type=Path, help="keep and reuse the dataset here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mmr1-bench-") as scratch:
        folder = args.folder or Path(scratch) / "data"
        make(folder, args.records, args.share, args.side)
        rows = []
        for name, command in commands(folder, args.records).items():
            if args.only and name not in args.only:
                continue
            runs: dict[Path, list[dict[str, float]]] = {REPOSITORY: []}
            if args.before:
                runs = {args.before: [], **runs}
            for _ in range(args.repeat):
                for code, figures in runs.items():
                    for index in folder.glob(".*.index") if name == "open" else ():
                        index.unlink()
                    figures.append(measured(command, Path(scratch), code))
            row: dict[str, Any] = {"command": name}
            for code, figures in runs.items():
                least = {key: min(figure[key] for figure in figures) for key in figures[0]}
                end = "" if code == REPOSITORY else ", before"
                row |= {f"{key}{end}": value for key, value in least.items()}
            if args.before:
                row["before / after"] = row["wall s, before"] / row["wall s"]
            rows.append(row)
            print(" | ".join(f"{k}: {_cell(v)}" for k, v in row.items()), flush=True)
    print()
    print("| " + " | ".join(rows[0]) + " |\n" + "|---" * len(rows[0]) + "|")
    for row in rows:
        print("| " + " | ".join(map(_cell, row.values())) + " |")


def commands(folder: Path, records: int) -> dict[str, list[str]]:
    """The arguments of every command; ``OUT`` stands for a new folder."""
    train, test = str(folder / "records.jsonl"), str(folder / "test.jsonl")
    data = ["-m", "datasets_prep"]
    return {
        "convert": [*data, "convert", "easyr1", "--input", str(folder / "rows.jsonl"),
                    "--output", "OUT/out"],
        "convert rows": [*data, "convert", "rows", "--input", str(folder / "few.jsonl"), "--map",
                         "question=problem,answer=answer,image=images", "--output", "OUT/out"],
        "validate": [*data, "validate", train],
        "stats": [*data, "stats", train],
        "split": [*data, "split", train, "train=0.9", "eval=0.1", "--output", "OUT/out"],
        "mix": [*data, "mix", f"{train}=0.7", f"{test}=0.3", "--count", str(records // 4),
                "--output", "OUT/mixed.jsonl"],
        "filter": [*data, "filter", train, "--rule", "width > 28 and task == 'math'",
                   "--output", "OUT/kept.jsonl"],
        "leakage": [*data, "leakage", train, test],
        "open": ["-c", OPEN, train],
        "open again": ["-c", OPEN, train],
    }  # fmt: skip


def make(folder: Path, records: int, share: int, side: int) -> None:
    """The records, a tenth as many of test, and the same as rows of EasyR1."""
    if (folder / "made").is_file():
        return
    (folder / "images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(-(-records // share)):
        coarse = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
        image.save(folder / f"images/{number}.jpg", quality=90)
    with (
        (folder / "records.jsonl").open("w") as train,
        (folder / "test.jsonl").open("w") as test,
        (folder / "rows.jsonl").open("w") as rows,
        (folder / "few.jsonl").open("w") as few,
    ):
        for number in range(records):
            path = f"images/{number // share}.jpg"
            text = f"How many of the {number} coloured regions of the picture are brighter?"
            medium = {"type": "image", "path": path, "width": side, "height": side}
            record = {
                "version": 1, "id": f"r{number}", "answer": str(number % 97), "task": "math",
                "source": "bench", "meta": {"level": number % 5},
                "messages": [{"role": "user", "content": [medium, {"type": "text", "text": text}]}],
            }  # fmt: skip
            train.write(json.dumps(record) + "\n")
            if number % 10 == 0:
                test.write(json.dumps(record) + "\n")
            row = {"problem": f"<image>{text}", "images": [path], "answer": record["answer"]}
            rows.write(json.dumps(row) + "\n")
            if number < FEW:
                few.write(json.dumps(row) + "\n")
    (folder / "made").touch()


def measured(command: list[str], scratch: Path, code: Path) -> dict[str, float]:
    """Seconds on the clock, CPU seconds and peak MiB of a command and its processes."""
    out = Path(tempfile.mkdtemp(dir=scratch))
    environment = {**os.environ, "PYTHONPATH": str(code)}
    words = [sys.executable, *(word.replace("OUT", str(out)) for word in command)]
    before, begin = os.times(), time.perf_counter()
    with (out / "log").open("w+") as log:
        process = subprocess.Popen(words, env=environment, cwd=code, stdout=log, stderr=log)
        memory = Peak(process.pid)
        process.wait()
        wall = time.perf_counter() - begin
        memory.stop()
        log.seek(0)
        text = log.read()
    leaks = process.returncode == 2 and "leakage" in words  # the test data are training data
    if process.returncode and not leaks:
        sys.exit(f"{' '.join(words)} failed:\n{text[-2000:]}")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user
    for line in text.splitlines():  # without the start of Python
        wall = float(line.split()[1]) if line.startswith("seconds ") else wall
    shutil.rmtree(out)
    return {"wall s": wall, "CPU s": cpu - before.children_system, "peak MiB": memory.mib}


class Peak(threading.Thread):
    """The most memory that a process and its children had at one time, asked ten times a second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._root, self._end, self.mib = psutil.Process(pid), threading.Event(), 0.0
        self.start()

    def run(self) -> None:
        while not self._end.wait(0.1):
            total = 0
            try:
                family = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                continue
            for process in family:
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.mib = max(self.mib, total / 2**20)

    def stop(self) -> None:
        self._end.set()
        self.join()


def _cell(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
