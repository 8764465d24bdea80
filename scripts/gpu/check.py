"""Every check in a process of its own, then one table and a JSON; see ``scripts/gpu_check.sh``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from scripts.gpu import models, runs
from scripts.gpu.figures import Figures, SkippedError

Check = Callable[[str, Path], Figures]


@dataclass(frozen=True, slots=True)
class Entry:
    """A check and the seconds that it may take."""

    name: str
    run: Check
    timeout_s: float


# In the order in which one failure explains the next.
CHECKS = (
    Entry("kernels against float32", models.kernels, 120),
    Entry("packed against padded", models.packed_against_padded, 240),
    Entry("step against unshared", models.steps, 420),
    Entry("estimate against the peak", models.estimated_memory, 180),
    Entry("training, transformers rollouts", runs.training_hf, 150),
    Entry("training, vLLM rollouts", runs.training_vllm, 300),
    Entry("weight sync", runs.weight_sync, 120),
    Entry("checkpoint and resume", runs.resume, 150),
    Entry("ranks and engines", runs.ranks, 420),
)


@dataclass(slots=True)
class Outcome:
    """How a check ended.

    Attributes:
        state: ``ok``, ``failed``, ``skipped`` or ``timed out``.
        note: Why, in one line, unless it is ok.
        figures: What was measured, by name, also of a check that failed.
    """

    name: str
    state: str
    seconds: float
    note: str = ""
    figures: Figures = field(default_factory=dict)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="the parts that make sense on a CPU")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="parts of names")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu_check"))
    args = parser.parse_args()
    # Nothing here may touch the GPU before the checks are forked.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    device = "cpu" if args.cpu else "cuda"
    if args.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        torch.set_num_threads(1)
    elif not torch.cuda.is_available():
        print("no GPU is here; --cpu runs what needs none", file=sys.stderr)
        return 2
    args.output.mkdir(parents=True, exist_ok=True)
    chosen = [e for e in CHECKS if not args.only or any(part in e.name for part in args.only)]
    outcomes = []
    for entry in chosen:
        print(f"{entry.name} ...", flush=True)
        outcomes.append(outcome_of(entry, device, args.output))
        print(f"  {outcomes[-1].state} in {outcomes[-1].seconds:.0f} s", flush=True)
        write(args.output / "gpu_check.json", outcomes, device)
    show(outcomes)
    print(f"written: {args.output / 'gpu_check.json'}")
    return int(any(outcome.state not in ("ok", "skipped") for outcome in outcomes))


def outcome_of(entry: Entry, device: str, folder: Path) -> Outcome:
    """Run a check in a forked process, so that neither its crash nor its memory stays."""
    receiver, sender = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=_report, args=(entry.run, device, folder, sender))
    start = time.perf_counter()
    process.start()
    sender.close()
    reply: tuple[str, str, Figures] | None = None
    in_time = receiver.poll(entry.timeout_s)
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


def _report(run: Check, device: str, folder: Path, sender: Connection) -> None:
    figures: Figures = {}
    try:
        run_folder = folder / run.__name__
        figures = run(device, run_folder)
        sender.send(("ok", "", figures))
    except SkippedError as why:
        sender.send(("skipped", str(why), figures))
    except BaseException as error:
        traceback.print_exc()
        measured = getattr(error, "figures", {})
        first_line = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        sender.send(("failed", first_line, measured))


def write(path: Path, outcomes: list[Outcome], device: str) -> None:
    about: dict[str, Any] = {
        "device": device,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    rows = [asdict(outcome) for outcome in outcomes]
    path.write_text(json.dumps({**about, "checks": rows}, indent=1) + "\n")


def show(outcomes: list[Outcome]) -> None:
    table = Table("check", "", "s", "figures", show_lines=True)
    for outcome in outcomes:
        lines = [f"{name}: {_text(value)}" for name, value in outcome.figures.items()]
        if outcome.note:
            lines.insert(0, outcome.note)
        table.add_row(outcome.name, outcome.state, f"{outcome.seconds:.0f}", "\n".join(lines))
    Console(highlight=False).print(table)


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
