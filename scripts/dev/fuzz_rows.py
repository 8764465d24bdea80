"""Mutated rows, files and media through every door that reads rows: only refusals may come.

    python scripts/dev/fuzz_rows.py                  # 300 of each, seed 0
    python scripts/dev/fuzz_rows.py --each 50 --seed 3

Each case is read as training reads it, validated and counted. A fault is any exception but
ValueError, a message of more than a screen, a case that takes too long, and a row that `validate`
accepts and training refuses. Exit code 1 if there is one; each is printed with its seed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from page_table import form_rows
from PIL import Image

from datasets_prep.generators.video import write_mp4
from datasets_prep.stats import collect_part
from datasets_prep.validate import check_part
from mmr1.config import DataConfig
from mmr1.data.quarantine import Quarantine
from mmr1.data.sources import load_samples, read_samples
from mmr1.types import MediaRef
from mmr1.vision.budget import PixelBudget
from mmr1.vision.images import load_image
from mmr1.vision.videos import load_video

LONGEST, SLOWEST_S = 2_000, 30.0
"""Characters of a message, and seconds of processor time of a case."""
Case = tuple[str, Path]
"""What was done, and the data."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=300, help="rows, files and media, of each")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    kinds: dict[str, Callable[[random.Random, Path], Case]] = {
        "rows": mutated_rows, "files": mutated_file, "media": mutated_medium,
    }  # fmt: skip
    faults = 0
    for kind, mutate in kinds.items():
        outcomes: Counter[str] = Counter()
        for number in range(args.seed, args.seed + args.each):
            with tempfile.TemporaryDirectory() as name:
                write_media(Path(name))
                what, path = mutate(random.Random(number), Path(name))
                outcome = tried(path)
            outcomes[outcome.partition(":")[0]] += 1
            if not outcome.startswith(("read", "refused")):
                faults += 1
                print(f"{kind} {number}, {what}: {outcome}", flush=True)
        counted = ", ".join(f"{count} {name}" for name, count in outcomes.most_common())
        print(f"{kind}: {args.each} cases, {counted}", flush=True)
    sys.exit(1 if faults else 0)


def tried(path: Path) -> str:
    """The outcome at all doors: read, refused, or the fault."""
    begin = time.process_time()
    found = {}
    for door, read in DOORS.items():
        try:
            found[door] = read(path)
        except ValueError as error:
            found[door] = [str(error)]
        except Exception as error:  # what the doors may not let through
            return f"fault: {door}: {type(error).__name__}: {str(error)[:200]}"
    longest = max((len(text) for texts in found.values() for text in texts), default=0)
    if longest > LONGEST:
        return f"long message: {longest} characters"
    if time.process_time() - begin > SLOWEST_S:
        return f"slow: {time.process_time() - begin:.0f} s"
    if found["training"] and not found["validate"]:
        return f"accepted by validate alone: {found['training'][0][:200]}"
    return "refused" if any(found.values()) else "read"


def _train(path: Path) -> list[str]:
    """The rows that cannot be used, and the media of others that cannot be decoded."""
    quarantine = Quarantine(1.0)
    samples = load_samples(path, DataConfig(), quarantine)
    reasons = [entry["reason"] for entry in quarantine.dropped]
    for media in (ref for sample in samples for ref in sample.media):
        try:
            _decode(media)
        except ValueError as error:
            reasons.append(str(error))
    return reasons


def _decode(ref: MediaRef) -> None:
    if ref.kind == "image":
        load_image(ref, PixelBudget())
    else:
        load_video(ref)


def _validate(path: Path) -> list[str]:
    rows = list(read_samples(path, DataConfig()))
    return [what for _, what in check_part(rows, deep=True, needs_task=False).problems]


def _stats(path: Path) -> list[str]:
    rows = list(read_samples(path, DataConfig()))
    return [what for _, what in collect_part(rows, PixelBudget()).unusable]


DOORS = {"training": _train, "validate": _validate, "stats": _stats}


def write_media(folder: Path) -> None:
    """The media that the examples of the formats name."""
    for name, colour in (("a", "red"), ("b", "blue")):
        Image.new("RGB", (40, 30), colour).save(folder / f"{name}.png")
    frames = np.stack([np.full((32, 32, 3), 20 * n, np.uint8) for n in range(8)])
    write_mp4(folder / "clip.mp4", frames, 8)


def examples() -> Iterator[dict[str, Any]]:
    """A row of every format and variant."""
    for *_, row in form_rows(Path(__file__).parents[2] / "docs/datasets.md"):
        yield row


def _deep(draw: random.Random) -> Any:
    value: Any = 1
    for _ in range(draw.choice((5, 900, 3000))):
        value = [value]
    return value


VALUES: list[Callable[[random.Random], Any]] = [
    lambda draw: None, lambda draw: draw.choice((True, False)), lambda draw: 0, lambda draw: -7,
    lambda draw: 10**400, lambda draw: 1e308, lambda draw: "", lambda draw: " ",
    lambda draw: "\ud800", lambda draw: "x" * 400_000, lambda draw: "_-" * 200_000,
    lambda draw: "<image>" * draw.randrange(5), lambda draw: "\\<image>", lambda draw: "a.png",
    lambda draw: "../../etc/passwd", lambda draw: "clip.mp4", lambda draw: "http://x.org/a.png",
    lambda draw: [], lambda draw: {}, lambda draw: [None], lambda draw: [["a.png"]],
    lambda draw: {"bytes": None, "path": None}, lambda draw: {"path": "b.png"}, _deep,
    lambda draw: "A", lambda draw: [1, 2, 30, 20], lambda draw: "[[0, 0, 900, 900]]",
]  # fmt: skip


def mutated_rows(draw: random.Random, folder: Path) -> Case:
    """Three rows of a format, in one of which a value was changed."""
    row = draw.choice(list(examples()))
    changed = json.loads(json.dumps(row))
    holder, key = changed, draw.choice([*changed, "meta", "row", "task", "options", "image", "id"])
    while isinstance(holder.get(key), dict) and holder[key] and draw.random() < 0.7:
        holder = holder[key]
        key = draw.choice(list(holder))
    if draw.random() < 0.15:
        holder.pop(key, None)
    else:
        holder[key] = draw.choice(VALUES)(draw)
    rows = [row, changed, draw.choice([row, {**row, "more": draw.choice(VALUES)(draw)}])]
    if "version" in row or "record" in row:  # whose ids would be repeated
        rows = [changed]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(_dumped, rows)), encoding="utf-8")
    return f"{key} of {sorted(map(str, row))}", path


def _dumped(row: Any) -> str:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(row)
    finally:
        sys.setrecursionlimit(before)
        sys.set_int_max_str_digits(4300)


def mutated_file(draw: random.Random, folder: Path) -> Case:
    """A file of some kind whose bytes were cut, changed, or written in another encoding."""
    rows = [
        {"problem": f"¿Cuántos? 图像 {n}", "image": "a.png", "answer": str(n)} for n in range(9)
    ]
    kind = draw.choice((".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet", ".csv"))
    text = json.dumps(rows, ensure_ascii=False)
    if kind.startswith(".jsonl"):
        text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    if kind == ".csv":
        text = "\n".join(",".join(line) for line in ([*rows[0]], *([*r.values()] for r in rows)))
    encoding = draw.choice(("utf-8", "utf-8", "gbk", "utf-16"))
    data = text.encode(encoding, errors="replace")
    if kind.endswith(".gz"):
        data = gzip.compress(data)
    elif kind == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
        data = (folder / "rows.parquet").read_bytes()
    return _damaged(draw, data, folder / f"rows{kind}", encoding)


def _damaged(draw: random.Random, data: bytes, path: Path, said: str) -> Case:
    how = draw.choice(("whole", "cut", "changed", "changed", "zeros"))
    content = bytearray(data)
    if how == "cut":
        del content[draw.randrange(len(content)) :]
    elif how == "changed":
        for _ in range(draw.choice((1, 4, 40))):
            content[draw.randrange(len(content))] = draw.randrange(256)
    elif how == "zeros":
        begin = draw.randrange(len(content))
        content[begin : begin + 64] = bytes(len(content[begin : begin + 64]))
    path.write_bytes(bytes(content))
    return f"{path.name} {said} {how}", path


def mutated_medium(draw: random.Random, folder: Path) -> Case:
    """A row about a picture or a video whose file was cut, changed, or made a hole."""
    name = draw.choice(("p.png", "p.jpg", "p.gif", "p.webp", "p.tif", "deep.png", "clip.mp4"))
    if name == "deep.png":
        top = draw.choice((3, 255, 4095, 65535))
        values = np.linspace(0, top, 900).reshape(30, 30).astype(np.uint16)
        Image.fromarray(values).save(folder / name)
    elif name != "clip.mp4":
        noise = np.random.default_rng(draw.randrange(99)).integers(0, 255, (60, 80, 3), np.uint8)
        Image.fromarray(noise).save(folder / name)
    what, path = _damaged(draw, (folder / name).read_bytes(), folder / name, "medium")
    if draw.random() < 0.1:
        with path.open("r+b") as file:
            file.truncate(20 << 30)
        what += " and a hole of 20 GB"
    column = "video" if name == "clip.mp4" else "image"
    row = {"problem": f"<{column}>What?", f"{column}s": [name], "answer": "3"}
    (folder / "rows.jsonl").write_text(json.dumps(row))
    return what, folder / "rows.jsonl"


if __name__ == "__main__":
    main()
