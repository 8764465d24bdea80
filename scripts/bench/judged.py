"""A policy that a judge pays, on the quickstart's digits: held-out accuracy.

    scripts/quickstart.sh              # once: makes the data and the SFT checkpoint
    python scripts/bench/judged.py     # three seeds

The judge is a small model behind vLLM's own server. It is shown a scan and a completion. It names
the digit that it sees and the answer that was given, and then says 1 for a right answer, else 0:
``The digit is seven, 7: 1``. It learned that by SFT, from written answers with right and with wrong
digits and from what the SFT checkpoint samples for the training scans, with the rule's verdicts. It
is compared with the rule on the SFT checkpoint's answers to held-out scans.
Then it pays 60 steps of GRPO beside the reward for the format; the rule pays nothing, and is
logged. Another policy is paid by the rule. A run that exists under ``--output`` is not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from digit_runs import DATA, RECIPE, START, accuracies, call, newest
from preferences import WORDS
from rich.console import Console
from rich.table import Table

from mmr1.rewards.composite import build_composite_reward
from mmr1.rewards.plugins.item_rows import read_rows, to_item
from mmr1.rewards.specs import read_spec

Row = dict[str, Any]
TEMPLATE = Path("scripts/bench/judged.jinja")
SFT = Path("scripts/recipes/quickstart/sft.yaml")
JUDGE_STEPS = 800
STEPS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("runs/bench/judged"))
    args = parser.parse_args()
    sampled = sample_start(args.output)
    table = Table("", "seed", "greedy", "sampled", "judge agrees with the rule")
    table.add_row("start", "", *accuracies(START, args.output / "start"))
    for seed in args.seeds:
        folder = args.output / f"seed-{seed}"
        agreed = judged(seed, folder, sampled, args.output)
        figures = accuracies(newest(folder / "policy"), folder / "eval")
        table.add_row("GRPO, paid by the judge", str(seed), *figures, f"{agreed:.3f}")
    for seed in args.seeds:
        folder = args.output / f"seed-{seed}"
        learn(folder / "rule", seed, "rewards.functions.thought.weight=0")
        figures = accuracies(newest(folder / "rule"), folder / "eval_rule")
        table.add_row("GRPO, paid by the rule", str(seed), *figures)
    Console().print(table)


def judged(seed: int, folder: Path, sampled: Path, output: Path) -> float:
    """Train a judge and the policy that it pays, unless they exist; the judge's agreement."""
    judge = folder / "judge"
    write_verdicts(folder / "verdicts.jsonl", sampled, random.Random(seed))
    train(
        *("sft", SFT, judge, START, seed, f"trainer.max_steps={JUDGE_STEPS}"),
        *(
            f"data.train={folder / 'verdicts.jsonl'}",
            "optimizer.lr=1e-3",
            "data.train_batch_size=64",
        ),
    )
    agreed = folder / "agree.json"
    if not agreed.is_file() or not (folder / "policy/done").is_file():
        with served(newest(judge), folder / "server.log") as url:
            paid = reward(url, folder / "replies.sqlite")
            agreed.write_text(json.dumps(agreement(paid, folder, output / "start")))
            unpaid = (f"rewards.functions.{name}.weight=0" for name in ("math", "thought"))
            learn(folder / "policy", seed, *unpaid, f"rewards.functions.judged={json.dumps(paid)}")
    return float(json.loads(agreed.read_text()))


def learn(folder: Path, seed: int, *rewards: str) -> None:
    """GRPO from the SFT checkpoint, paid by these rewards."""
    keys = (f"trainer.max_steps={STEPS}", "rollout.engine=hf", "trainer.validation=null")
    train("train", RECIPE, folder, START, seed, *keys, *rewards)


def train(command: str, recipe: Path, folder: Path, start: Path, seed: int, *keys: str) -> None:
    """Train one run, unless it exists."""
    if (folder / "done").is_file():
        return
    where = (f"model.path={start}", f"trainer.output_dir={folder}", f"data.media_root={DATA}")
    call("mmr1.cli", command, recipe, *where, f"seed={seed}", *keys)
    (folder / "done").touch()


def sample_start(output: Path) -> Path:
    """Four completions of each training scan by the SFT checkpoint."""
    folder = output / "sampled"
    if not (folder / "result.json").is_file():
        where = (f"eval.data={DATA / 'rl.jsonl'}", f"eval.output_dir={folder}", "eval.sampled.n=4")
        call("mmr1.cli", "eval", RECIPE, f"model.path={START}", "rollout.engine=hf", *where)
    return folder / "completions.jsonl"


def write_verdicts(path: Path, sampled: Path, rng: random.Random) -> None:
    """Write the judge's data: of each scan four written answers and three of the policy's.

    Thought and answer of the written ones are right or wrong independently. A judge that never saw
    them differ may look at the thought alone, and the policy finds that out.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    own: dict[str, list[tuple[str, bool]]] = {}
    for c in read(sampled):
        own.setdefault(c["id"], []).append((c["completion"], c["right"]))
    rows = []
    for row in read(DATA / "rl.jsonl"):
        digit = int(row["answer"])
        wrong = [other for other in range(10) if other != digit]
        written = [
            (f"<think>The digit is {WORDS[said]}.</think><answer>{given}</answer>", given == digit)
            for said in (digit, rng.choice(wrong))
            for given in (digit, rng.choice(wrong))
        ]
        shown = [*written, *rng.sample(own[row["id"]], 3)]
        rows += [verdict(row, number, *pair) for number, pair in enumerate(shown)]
    write(path, rows)


def verdict(row: Row, number: int, completion: str, right: bool) -> Row:
    """The record of a scan as a conversation with the judge."""
    image = next(part for part in row["messages"][0]["content"] if part["type"] == "image")
    text = {
        "type": "text",
        "text": TEMPLATE.read_text().strip().replace("{{ completion }}", completion),
    }
    messages = [
        {"role": "user", "content": [image, text]},
        {"role": "assistant", "content": reply(completion, int(row["answer"]), right)},
    ]
    return {**row, "id": f"{row['id']}-{number}", "messages": messages}


def reply(completion: str, digit: int, right: bool) -> str:
    """The reply that the judge is taught. A verdict without its reasons is learned far worse."""
    answer = re.search(r"<answer>(.*?)</answer>", completion)
    given = answer[1].strip() if answer and len(answer[1]) <= 2 else "none"
    return f"The digit is {WORDS[digit]}, {given}: {int(right)}"


def reward(url: str, cache: Path) -> Row:
    options = {
        **{"url": url, "model": "judge", "template": str(TEMPLATE), "score_regex": ": ([01])$"},
        **{"max_tokens": 40, "cache": str(cache)},
    }
    return {"use": "judge", "weight": 1.0, "options": options}


def agreement(paid: Row, folder: Path, start: Path) -> float:
    """The share of answers to held-out scans on which judge and rule agree."""
    scans = {row["id"]: row for row in read(DATA / "eval.jsonl")}
    rows = [
        {**c, "images": [str(DATA / scans[c["id"]]["messages"][0]["content"][0]["path"])]}
        for c in read(start / "completions.jsonl")
    ]
    write(folder / "held_out.jsonl", rows)
    items = [to_item(row, where) for row, where in read_rows(folder / "held_out.jsonl")]
    verdicts = []
    for name, function in {"math": {"use": "math"}, "judged": paid}.items():
        file = folder / f"{name}.yaml"
        file.write_text(json.dumps({"functions": {name: function}}))
        with build_composite_reward(read_spec(str(file))) as reward:
            verdicts.append(reward.score(items))
    passed = [[r.value >= 0.5 for r in rewards if r.value is not None] for rewards in verdicts]
    if missing := [len(items) - len(of) for of in passed if len(of) < len(items)]:
        sys.exit(f"{folder}: {missing} completions have no valid reward")
    return fmean(rule == judge for rule, judge in zip(*passed, strict=True))


@contextmanager
def served(model: Path, log: Path) -> Iterator[str]:
    """The address of vLLM's server of this model, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = (
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "judge"),
        *("--dtype", "float32", "--max-model-len", "256", "--enforce-eager"),
    )
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_HOST_IP": "127.0.0.1"}
    with (
        log.open("w") as printed,
        subprocess.Popen(command, stdout=printed, stderr=printed, env=environment) as server,
    ):
        try:
            while not answers(f"http://127.0.0.1:{port}/health"):
                if server.poll() is not None:
                    sys.exit(f"vLLM's server did not start; see {log}")
                time.sleep(1)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.open()]


def write(path: Path, rows: list[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
