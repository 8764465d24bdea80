"""Speed of counting vision tokens from image headers, and of dropping overlong prompts.

    python scripts/bench/headers.py

JPEG photographs of various sizes, one file each; one process, one thread. Nothing is decoded.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

import common
import numpy as np
from matplotlib import pyplot as plt
from PIL import Image

from mmr1.data.quarantine import Quarantine
from mmr1.data.sources import keep_fitting
from mmr1.types import MediaRef, Message, Sample, TextPart
from mmr1.vision.families.loading import load_family
from mmr1.vision.families.tiny import new_model


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--prompts", type=int, default=10_000)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mmr1-bench-"))
    new_model(folder / "model")
    family = load_family(str(folder / "model"))
    refs = [MediaRef("image", path) for path in photographs(folder, args.images)]
    begin = time.perf_counter()
    counted = sum(family.media_tokens(ref) for ref in refs)
    count_s = time.perf_counter() - begin

    samples = [
        Sample(str(i), (Message("user", (refs[i % len(refs)], TextPart(f"How many? {i}"))),))
        for i in range(args.prompts)
    ]
    rows = Quarantine(1.0)
    rows.read("", len(samples))
    begin = time.perf_counter()
    kept = keep_fitting(
        "",
        samples,
        lambda sample: family.prompt_length(family.render_prompt(sample)),
        counted // len(refs),
        rows,
    )
    filter_s = time.perf_counter() - begin
    rows = [
        {"what": "headers counted", "count": len(refs), "s": count_s, "per s": len(refs) / count_s},
        {
            "what": f"prompts filtered, {len(kept)} kept",
            "count": len(samples),
            "s": filter_s,
            "per s": len(samples) / filter_s,
        },
    ]
    common.table(rows)
    figure, axes = plt.subplots(figsize=(5, 2))
    axes.barh([str(row["what"]) for row in rows], [float(row["per s"]) for row in rows])
    axes.set_xlabel("a second")
    common.save(args.output, "headers", {"rows": rows}, figure)


def photographs(folder: Path, count: int) -> list[Path]:
    """JPEG files of random sizes, up to 2000 pixels per side."""
    rng = random.Random(0)
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    paths = []
    for i in range(count):
        path = folder / f"{i}.jpg"
        size = (rng.randint(200, 2000), rng.randint(200, 2000))
        Image.fromarray(noise).resize(size, Image.Resampling.NEAREST).save(path, quality=50)
        paths.append(path)
    return paths


if __name__ == "__main__":
    main()
