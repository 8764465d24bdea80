"""Score mutated answers with every reward that reads one: no exception, and no slow reading.

    python scripts/dev/fuzz_answers.py --texts 20000 --limit 0.25

The answers of ``tests/rewards/answer_sets`` are mutated: characters are dropped, doubled, swapped
and replaced, pieces of other answers are put in, and answers are repeated. Every text is read in
this process, where an exception or a reading above the limit fails; algebra runs in the verifier,
whose time-outs are counted.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from mmr1.rewards.item import BadGoldError, Job
from mmr1.rewards.kind import reward, section_named
from mmr1.rewards.sandbox.pool import Pool

SETS = Path(__file__).parents[2] / "tests" / "rewards" / "answer_sets"
TABLES = (
    *("answers", "first_sight", "second_sight", "third_sight", "fourth_sight", "fifth_sight"),
    "sixth_sight",
)
SIGNS = [
    *"0123456789.,:;-+*/^%$°'\"()[]{}\\<>=!?~ \n\t#|_", "not ", " or ", " but ", " and ", "no ",
    "\\frac", "\\text{", "\\boxed{", "\u200b", "²", "½", "到", "不是", "１", " to ", "wait, ",
    "the answer is ", "because ", "```", "**", "e9", "<answer>",
]  # fmt: skip


def mutate(answer: str, others: list[str], rng: random.Random) -> str:
    """Return the answer with one to six changes."""
    text = answer
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(text) + 1)
        kind = rng.randrange(6)
        if kind == 0:
            text = text[:at] + text[at + rng.randint(1, 3) :]
        elif kind == 1:
            text = text[:at] + rng.choice(SIGNS) + text[at:]
        elif kind == 2:
            other = rng.choice(others)
            text = text[:at] + other[: rng.randint(0, len(other))] + text[at:]
        elif kind == 3:
            text = text[:at] + text[:at][::-1][:8] + text[at:]
        elif kind == 4 and len(text) < 4000:
            text = (text + rng.choice(SIGNS)) * rng.choice((2, 3, 40))
        else:
            text = text[at:] + text[:at]
    return text


def main() -> int:
    """Fuzz the rewards and print what failed; 1 if something did."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--limit", type=float, default=0.25, help="CPU seconds for one reading")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    rows = [
        json.loads(line) for t in TABLES for line in (SETS / f"{t}.jsonl").open(encoding="utf-8")
    ]
    answers = [row["completion"].partition("<answer>")[2].partition("</answer>")[0] for row in rows]
    failed, slowest, jobs = Counter[str](), (0.0, ""), list[Job]()
    for row, answer in zip(rows, answers, strict=True):
        score(row, answer)  # imports, and compiles patterns
    for _ in range(arguments.texts):
        index = rng.randrange(len(rows))
        row, text = rows[index], mutate(answers[index], answers, rng)
        start = time.process_time()
        try:
            outcome = score(row, text)
        except Exception as error:
            failed[f"{type(error).__name__}: {error}"] += 1
            print(f"{row['reward']} {text!r:.300}: {type(error).__name__}: {error}")
            continue
        seconds = time.process_time() - start
        slowest = max(slowest, (seconds, f"{row['reward']} {text!r:.200}"))
        if seconds > arguments.limit:
            failed["slow"] += 1
            print(f"{seconds:.3f} s: {row['reward']} {text!r:.300}")
        if isinstance(outcome, Job):
            jobs.append(outcome)
    with Pool(1, 2.0) as pool:
        statuses = Counter(str(reward.status) for rewards in pool.run(jobs) for reward in rewards)
    print(f"{arguments.texts} texts, {failed.total()} failed")
    print(f"slowest: {slowest[0]:.3f} s, {slowest[1]}")
    print(f"{len(jobs)} jobs of the verifier: {dict(statuses)}")
    return int(failed.total() > 0 or "error" in statuses)


def score(row: dict[str, Any], text: str) -> Any:
    """Return what the row's reward function makes of a text; the gold may be unreadable."""
    function = reward.build(section_named(row["reward"])(**(row.get("options") or {})))
    columns = row.get("columns") or {}
    named = {key: columns[key] for key in ("options", "image_size", "duration") if key in columns}
    try:
        return function(f"<answer>{text}</answer>", row["gold"], **named)
    except BadGoldError:
        return None


if __name__ == "__main__":
    sys.exit(main())
