"""A GRPO step, rollout included, against TRL's GRPOTrainer on the same work.

    python -m venv trl && trl/bin/pip install trl==1.16.0 datasets accelerate pillow \
        torch==2.13.0 "transformers<5.20" && trl/bin/pip install --no-deps torchvision==0.28.0
    python scripts/bench/against_trl.py --trl-python trl/bin/python

21M parameters, 8 prompts with one 280x280 image, 8 completions of up to 64 tokens each, one thread
per process. Times are CPU seconds over all processes of a run, including the rollout engine and the
reward workers, because wall seconds depend on the load of the machine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import common
import psutil
from PIL import Image

from mmr1.config import Config
from mmr1.config.file import dump_yaml
from mmr1.data.record import read_records
from mmr1.vision.families.tiny import new_model

HERE = Path(__file__).parent


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument(
        "--trl-python", required=True, help="Python interpreter of TRL's environment"
    )
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--bf16", action="store_true", help="both sides; TRL by autocast")
    parser.add_argument(
        "--steps", type=int, default=4, help="number of steps; the first is not counted"
    )
    parser.add_argument("--engines", nargs="+", default=["vllm", "vllm-bf16", "hf"])
    parser.add_argument(
        "--max-tokens-per-gpu", type=int, default=3000, help="trainer.max_tokens_per_gpu of mmr1"
    )
    args = parser.parse_args()
    work = args.output / "against_trl"
    work.mkdir(parents=True, exist_ok=True)
    model, records = _inputs(work)
    peer = [_trl(args, work, model, records, checkpointing) for checkpointing in (False, True)]
    best = min(row["CPU s"] for row in peer)
    rows = peer + [_ours(args, work, model, records, engine) for engine in args.engines]
    for row in rows:
        row["TRL's best / this"] = best / row["CPU s"]
    common.table(rows)
    name = f"against_trl-n{args.n}{'-bf16' if args.bf16 else ''}"
    common.save(args.output, name, {"rows": rows})


def _inputs(work: Path) -> tuple[Path, Path]:
    """The model, and images with shapes to count."""
    model, data = work / "model", work / "data"
    if not model.exists():
        new_model(model, "20m")
    if not data.exists():
        command = [sys.executable, "-m", "datasets_prep", "make", "counting", "--output", str(data)]
        subprocess.run(command, check=True)
    records = data / "rl.jsonl"
    rows = []
    for sample in read_records(records)[:64]:
        path = work / f"{sample.id}.png"
        Image.open(sample.media[0].path).convert("RGB").resize((280, 280)).save(path)
        content = f"<image>{sample.question}"
        rows.append(
            {
                "version": 1,
                "id": sample.id,
                "messages": [{"role": "user", "content": content}],
                "images": [path.name],
                "answer": str(sample.answer),
            }
        )
    made = work / "records.jsonl"
    made.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return model, made


def _trl(
    args: Any, work: Path, model: Path, records: Path, checkpointing: bool
) -> dict[str, object]:
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    prompts = [
        {
            "question": row["messages"][0]["content"].removeprefix("<image>"),
            "image": str((work / row["images"][0]).resolve()),
            "answer": row["answer"],
        }
        for row in rows
    ]
    (work / "trl.json").write_text(json.dumps(prompts))
    options = {name: getattr(args, name) for name in ("prompts", "n", "tokens", "steps")}
    options |= {"checkpointing": checkpointing, "bf16": args.bf16}
    command = [args.trl_python, HERE / "trl_step.py", model, work / "trl.json"]
    done = subprocess.run(
        [*map(str, command), json.dumps(options)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"TRL failed:\n{done.stderr[-2000:]}")
    measured = json.loads(done.stdout.splitlines()[-1])
    return {
        "run": "TRL" + (", checkpointing" if checkpointing else ""),
        "CPU s": statistics.median(measured["cpu"][1:]),
        "wall s": statistics.median(measured["wall"][1:]),
        "rollout s": None,
        "update s": None,
        "tokens": statistics.median(measured["tokens"]),
        "peak MiB": measured["peak_mib"],
    }


def _ours(args: Any, work: Path, model: Path, records: Path, name: str) -> dict[str, object]:
    """Steps of mmr1 with this engine; the suffix ``-bf16`` makes it sample in bfloat16."""
    out = work / f"{name}-{time.strftime('%H%M%S')}"
    engine, _, rounded = name.partition("-")
    config = Config.model_validate(
        {
            "model": {"path": str(model), "dtype": "bfloat16" if args.bf16 else "float32"},
            "data": {"train": str(records), "train_batch_size": args.prompts},
            "rollout": {
                "engine": {"type": engine, "dtype": "bfloat16"} if rounded else engine,
                "n": args.n,
                "max_prompt_length": 512 - args.tokens,
                "max_response_length": args.tokens,
            },
            "rewards": {"spread": {"type": f"{HERE / 'spread_reward.py'}:reward"}},
            "scoring": {"workers": 1, "timeout_s": 20},
            "trainer": {
                "max_steps": args.steps,
                "output_dir": str(out),
                "threads": 1,
                "max_tokens_per_gpu": args.max_tokens_per_gpu,
                "vision_token_cost": 1.0,
                "log_completions_steps": 1000,
            },
        }
    )
    path = work / f"{name}.yaml"
    path.write_text(dump_yaml(config))
    command = [sys.executable, "-m", "mmr1.cli", "train", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    marks, peak = _watch(process, out / "metrics.jsonl")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    cpu = [after - before for before, after in pairwise(marks)]
    assert all(line["reward/frac_zero_std"] == 0 for line in lines), (
        "every group is to be learnt from"
    )
    return {
        "run": f"mmr1, {name}",
        "CPU s": statistics.median(cpu),
        "wall s": statistics.median(line["time/step"] for line in lines[1:]),
        "rollout s": statistics.median(line["time/rollout"] for line in lines[1:]),
        "update s": statistics.median(line["time/update"] for line in lines[1:]),
        "tokens": statistics.median(line["tokens/completion"] for line in lines[1:]),
        "peak MiB": peak,
    }


def _watch(process: subprocess.Popen[bytes], metrics: Path) -> tuple[list[float], float]:
    """CPU seconds of all processes at the end of each step, and the trainer's peak memory."""
    marks: list[float] = []
    peak = 0.0
    family = psutil.Process(process.pid)
    while process.poll() is None:
        done = len(metrics.read_bytes().splitlines()) if metrics.exists() else 0
        if done > len(marks):
            marks.append(_cpu_seconds(family))
        peak = max(peak, _rss_mib(family))
        time.sleep(0.02)
    if process.returncode:
        sys.exit(f"the run failed with exit code {process.returncode}")
    return marks, peak


def _cpu_seconds(family: psutil.Process) -> float:
    total = 0.0
    for process in (family, *family.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def _rss_mib(family: psutil.Process) -> float:
    try:
        return family.memory_info().rss / 2**20
    except psutil.NoSuchProcess:
        return 0.0


if __name__ == "__main__":
    main()
