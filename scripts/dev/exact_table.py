"""Write the tables of docs/reproduce.md: the settings of the originals, what exact recipes do not
have as their originals do, and in which keys they differ from the practical ones.

python scripts/dev/exact_table.py            write them
python scripts/dev/exact_table.py --check    exit with 1 when they are not what they should be

The second table is the end of each exact YAML: comments of the form ``# - what | there | here``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmr1.config.file import command_in, load_config
from mmr1_contrib.migrate.source import flattened

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reproduce.md"
HEAD = "# Not as there, what | there | here, and why:\n"
PLACES = (
    "data.train",
    "data.media_root",
    "data.format",
    "trainer.output_dir",
    "trainer.validation",
)
"""Where things are, and how they are read."""


def exact_files() -> list[Path]:
    return sorted((ROOT / "scripts/recipes").glob("*/exact_*.yaml"))


def differences(file: Path) -> list[tuple[str, ...]]:
    """Differences of an exact YAML: the subject, its value in the original, and here.

    Raises:
        ValueError: It does not say, or not in three parts.
    """
    _, head, said = file.read_text().partition(HEAD)
    rows = [tuple(row.split(" | ")) for row in re.sub("\n#   ", " ", said).splitlines()]
    rows = [(what.removeprefix("# - "), *others) for what, *others in rows]
    if not head or not rows or any(len(row) != 3 for row in rows):
        raise ValueError(
            f"{file}: end it with '{HEAD.strip()}' and lines '# - what | there | here'"
        )
    return rows


def settings() -> Iterator[str]:
    """Yield the settings that decide most, of each original that samples."""
    os.environ["ORIGINAL"] = "ORIGINAL"
    for file in exact_files():
        config = load_config(file, command=command_in(file))
        if not config.samples:
            continue
        rollout, algorithm, loss = config.rollout, config.algorithm, config.algorithm.loss
        pixels = config.data.image.max_pixels
        clip = [getattr(loss, key, None) for key in ("clip_ratio_low", "clip_ratio_high")]
        cells = (
            _stage(file),
            _model_name(config.model.path),
            config.data.train_batch_size,
            rollout.n,
            algorithm.ppo_mini_batch_size or "all",
            f"{config.optimizer.lr:g}",
            "none" if algorithm.kl is None else f"{algorithm.kl.coef:g} ({algorithm.kl.type})",
            " / ".join(f"{bound:g}" for bound in clip if bound is not None) or "none",
            rollout.max_response_length,
            "" if pixels is None else f"{pixels:,}",
        )
        yield f"| {' | '.join(map(str, cells))} |"


def _model_name(path: str) -> str:
    return path.rpartition("/")[2]


def from_originals() -> Iterator[str]:
    for file in exact_files():
        for row in differences(file):
            yield f"| {_stage(file)} | {' | '.join(row)} |"


def from_practical() -> Iterator[str]:
    os.environ["ORIGINAL"] = "ORIGINAL"
    for exact in exact_files():
        practical = exact.with_name(exact.name.removeprefix("exact_"))
        theirs, ours = _flat(exact), _flat(practical)
        for key in sorted({*theirs, *ours}):
            if theirs.get(key) != ours.get(key) and not key.startswith(PLACES):
                values = f"{_shown(theirs.get(key))} | {_shown(ours.get(key))}"
                yield f"| {_stage(exact)} | `{key}` | {values} |"


def _stage(file: Path) -> str:
    return f"`{file.parent.name}`, {file.stem.removeprefix('exact_')}"


def _flat(file: Path) -> dict[str, Any]:
    tree = load_config(file, command=command_in(file)).model_dump(mode="json")
    tree["rewards"] = ", ".join(tree["rewards"])
    return flattened(tree)


def _shown(value: Any) -> str:
    text = "null" if value is None else str(value).replace("|", "/")
    return text.rpartition("/")[2] if text.startswith("ORIGINAL/") else text


if __name__ == "__main__":
    from page_table import write_or_check

    write_or_check(
        PAGE,
        "| stage | model | prompts | n | mini-batch | lr | KL | clip | response | max pixels |",
        settings(),
    )
    write_or_check(PAGE, "| stage | what | in the original | here, and why |", from_originals())
    write_or_check(PAGE, "| stage | key | exact | here |", from_practical())
