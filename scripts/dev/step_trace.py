"""The files and functions of mmr1 that one training step enters, and how deep its calls go.

    python scripts/dev/step_trace.py            # a table by file
    python scripts/dev/step_trace.py --names    # and every function

A run of two steps and one of three, each in a separate process: what the third calls more often
belongs to the step. A toy model, text, the transformers engine, a KL term, a built-in reward and a
file's in its sandbox; all threads of the process that runs the loop, from ``run_training`` down. A
function is a code object of mmr1, a generator or a method as much as any other. Comprehensions,
lambdas and generator expressions are counted apart, because a reader meets them inside the function
that has them. Depth counts the frames of mmr1 on the stack while a function of the step runs, in
the steps and not in the start of the run.
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
Key = tuple[str, str, int]
"""File, qualified name and first line of a function."""


def toy_run(folder: Path, steps: int) -> dict[str, Any]:
    """The configuration of the traced run: four prompts of four completions a step."""
    return {
        "model": {"path": str(folder / "model"), "dtype": "float32"},
        "data": {"train": str(folder / "rows.jsonl"), "train_batch_size": 4},
        "rollout": {
            "engine": "hf",
            "n": 4,
            "max_prompt_length": 52,
            "max_response_length": 12,
        },
        "rewards": {
            "workers": 1,
            "functions": {"format": {}, "noise": {"use": f"{folder}/noise.py:reward"}},
        },
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
    from mmr1.vision.families.tiny import new_model

    new_model(folder / "model", family="text")
    (folder / "noise.py").write_text(REWARD)
    rows = [
        {"version": 1, "id": str(n), "answer": str(2 * n)}
        | {"messages": [{"role": "user", "content": f"What is {n} and {n}?"}]}
        for n in range(32)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def traced(folder: Path, steps: int) -> tuple[dict[Key, int], dict[Key, int]]:
    """Calls of each function in a run of so many steps, and the greatest depth of each."""
    from mmr1.config import Config
    from mmr1.trainer.train import run_training

    config = Config.model_validate(toy_run(folder, steps))
    own: dict[CodeType, bool] = {}
    calls: Counter[CodeType] = Counter()
    depths: dict[CodeType, int] = {}
    started: set[str] = set()

    def is_own(code: CodeType) -> bool:
        if code not in own:
            own[code] = Path(code.co_filename).is_relative_to(PACKAGE)
        return own[code]

    def entered(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and is_own(frame.f_code):
            calls[frame.f_code] += 1
            started.add(frame.f_code.co_qualname)
            if "Run.take" in started:  # the start of the run may be deeper
                depths[frame.f_code] = max(depths.get(frame.f_code, 0), depth(frame))

    def depth(frame: FrameType | None) -> int:
        frames = 0
        while frame is not None:
            frames += is_own(frame.f_code) and frame.f_code.co_name != "<module>"
            frame = frame.f_back
        return frames

    threading.setprofile(entered)
    sys.setprofile(entered)
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            run_training(config)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {key(c): n for c, n in calls.items()}, {key(c): n for c, n in depths.items()}


def key(code: CodeType) -> Key:
    file = Path(code.co_filename).relative_to(PACKAGE.parent)
    return str(file), code.co_qualname, code.co_firstlineno


def of_step(two: dict[Key, int], three: dict[Key, int]) -> dict[Key, int]:
    """Calls of one step: of what three steps call more often than two."""
    more = {name: calls - two.get(name, 0) for name, calls in three.items()}
    return {name: calls for name, calls in sorted(more.items()) if calls > 0}


def is_named(name: Key) -> bool:
    return not name[1].endswith(">")


def show(step: dict[Key, int], depths: dict[Key, int], names: bool) -> None:
    files = sorted({file for file, _, _ in step})
    width = max(map(len, files))
    print(f"{'file':{width}}  functions  calls")
    for file in files:
        inside = {name: calls for name, calls in step.items() if name[0] == file}
        print(f"{file:{width}}  {sum(map(is_named, inside)):9}  {sum(inside.values()):5}")
        if names:
            print("\n".join(f"    {calls:5}  {name[1]}" for name, calls in inside.items()))
    named = sum(map(is_named, step))
    print(
        f"{len(files)} files, {named} named functions ({len(step)} with comprehensions and "
        f"lambdas), {sum(step.values())} calls, {max(depths[name] for name in step)} frames deep"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--names", action="store_true", help="list every function")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
            two, _ = pool.submit(traced, Path(folder), 2).result()
            three, depths = pool.submit(traced, Path(folder), 3).result()
    # What only the start calls may differ by chance.
    step = {name: calls for name, calls in of_step(two, three).items() if name in depths}
    show(step, depths, args.names)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
