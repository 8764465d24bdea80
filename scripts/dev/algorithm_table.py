"""Write the table of algorithms in docs/algorithms.md from the algorithms' own files.

python scripts/dev/algorithm_table.py            write it
python scripts/dev/algorithm_table.py --check    exit with 1 when it is not what it should be
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from page_table import write_or_check

from mmr1.config.algorithm_spec import algorithm_names, algorithm_specs

PAGE = Path(__file__).parents[2] / "docs/algorithms.md"
HEAD = "| name | advantage | loss | paper | when to choose it | file |"


def _rows() -> Iterator[str]:
    modules = algorithm_names().builtin
    for name, spec in algorithm_specs().items():
        file = modules[name].partition(":")[0].rpartition(".")[2]
        papers = ", ".join(map(_paper, spec.papers))
        cells = (f"`{name}`", spec.advantage, spec.loss, papers, spec.use, f"`{file}.py`")
        yield f"| {' | '.join(cells)} |"


def _paper(reference: str) -> str:
    is_arxiv = re.fullmatch(r"\d{4}\.\d{5}", reference)
    return f"[{reference}](https://arxiv.org/abs/{reference})" if is_arxiv else reference


if __name__ == "__main__":
    write_or_check(PAGE, HEAD, _rows())
