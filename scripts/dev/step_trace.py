"""The files and functions of mmr1 that one training step enters.

    python scripts/dev/step_trace.py            # a table by file
    python scripts/dev/step_trace.py --names    # and every function

A run of two steps and one of three, each in a separate process: what the third calls more often
belongs to the step. A toy model, text, the transformers engine, a KL term, a built-in reward and a
file's in its sandbox; all threads of the process that runs the loop. A function is a code object of
mmr1, a generator or a method as much as any other. Comprehensions, lambdas and generator
expressions are counted apart, because a reader meets them inside the function that has them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = Path(__file__).parents[2] / "mmr1"
REWARD = "def reward(completion: str, answer) -> float:\n    return len(completion) % 7 / 7\n"
Function = tuple[str, str, int]
"""File, qualified name and first line."""


def toy_run(folder: Path, steps: int) -> dict[str, Any]:
    """Return the configuration of the traced run: four prompts of four completions a step."""
    return {
        "model": {"path": str(folder / "model"), "dtype": "float32"},
        "data": {"train": str(folder / "rows.jsonl"), "train_batch_size": 4},
        "rollout": {"engine": "hf", "n": 4, "max_prompt_length": 52, "max_response_length": 12},
        "rewards": {"format": {}, "noise": {"type": f"{folder}/noise.py:reward"}},
        "scoring": {"workers": 1},
        "algorithm": {"kl": {"coef": 0.05}},
        "trainer": {
            "max_steps": steps,
            "output_dir": str(folder / f"run{steps}"),
            # The last step logs its completions and is saved anyway, in both runs.
            "log_completions_steps": 1,
            "threads": 1,
        },
    }


def prepare(folder: Path) -> None:
    """Write model, rows and reward of the traced runs."""
    from mmr1.vision.families.tiny import new_model

    new_model(folder / "model", family="text")
    (folder / "noise.py").write_text(REWARD)
    rows = [
        {"version": 1, "id": str(n), "answer": str(2 * n)}
        | {"messages": [{"role": "user", "content": f"What is {n} and {n}?"}]}
        for n in range(32)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def traced(folder: Path, steps: int) -> Counter[Function]:
    """Count the calls of each function in a run of so many steps."""
    from mmr1.config import Config
    from mmr1.trainer.train import run_training

    calls: Counter[CodeType] = Counter()

    def entered(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            calls[frame.f_code] += 1

    config = Config.model_validate(toy_run(folder, steps))
    threading.setprofile(entered)
    sys.setprofile(entered)
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            run_training(config)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    of_mmr1: Counter[Function] = Counter()
    for code, count in calls.items():
        file = Path(code.co_filename)
        if file.is_relative_to(PACKAGE):
            name = str(file.relative_to(PACKAGE.parent)), code.co_qualname, code.co_firstlineno
            of_mmr1[name] += count
    return of_mmr1


def show(step: Counter[Function], names: bool) -> None:
    """Print the functions of a step by file, and their numbers."""
    files = sorted({file for file, _, _ in step})
    width = max(map(len, files))
    print(f"{'file':{width}}  functions  calls")
    for file in files:
        inside = {own: calls for own, calls in step.items() if own[0] == file}
        print(f"{file:{width}}  {sum(map(is_named, inside)):9}  {sum(inside.values()):5}")
        if names:
            print("\n".join(f"    {calls:5}  {own[1]}" for own, calls in sorted(inside.items())))
    named = sum(map(is_named, step))
    print(f"{len(files)} files, {named} functions, {step.total()} calls")


def is_named(function: Function) -> bool:
    """True if it has a name: no comprehension, lambda or generator expression."""
    return not function[1].endswith(">")


def main() -> None:
    """Trace both runs and print what a step enters."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--names", action="store_true", help="list every function")
    names = parser.parse_args().names
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as one_by_one:
            two, three = [one_by_one.submit(traced, folder, n).result() for n in (2, 3)]
    show(three - two, names)


if __name__ == "__main__":
    main()
