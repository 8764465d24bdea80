"""Write the table of presets in docs/algorithms.md from the parts' files.

python scripts/dev/algorithm_table.py            write it
python scripts/dev/algorithm_table.py --check    exit with 1 when it is not what it should be
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from page_table import write_or_check

from mmr1.algorithms import Preset, advantage, loss, presets
from mmr1.config.presets import PARTS, PRESETS

PAGE = Path(__file__).parents[2] / "docs/algorithms.md"
HEAD = "| name | advantage | loss | filter_groups | paper | when to choose it |"


def _rows() -> Iterator[str]:
    for name, preset in presets().items():
        parts = (_shown(PRESETS[name][key]) for key in PARTS)
        papers = _linked(preset.papers or _of_part(preset))
        yield f"| {' | '.join((f'`{name}`', *parts, papers, preset.about))} |"


def _of_part(preset: Preset) -> str:
    kind = loss if "loss" in preset.values else advantage
    return ", ".join(kind.parts[preset.values[kind.key.rpartition(".")[2]]["type"]].papers)


def _shown(part: Mapping[str, Any] | None) -> str:
    """The type, and what differs from its defaults."""
    if part is None:
        return ""
    return ", ".join(f"`{v}`" if k == "type" else f"`{k}: {v}`" for k, v in part.items())


def _linked(papers: str) -> str:
    return re.sub(r"\d{4}\.\d{5}", r"[\g<0>](https://arxiv.org/abs/\g<0>)", papers)


if __name__ == "__main__":
    write_or_check(PAGE, HEAD, _rows())
