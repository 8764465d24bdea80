"""Gold answers inside ``<answer>`` tags."""

from __future__ import annotations

import re
from typing import Any

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def inside_answer(text: Any) -> Any:
    """The content of the last ``<answer>`` tag; a value without a tag is returned unchanged."""
    contents = ANSWER.findall(text) if isinstance(text, str) else []
    return contents[-1].strip() if contents else text


def tagged_answer(text: Any) -> str:
    """The content of the last ``<answer>`` tag. Raises ValueError when there is none."""
    if not isinstance(text, str) or not ANSWER.search(text):
        raise ValueError(
            f"the solution {str(text)[:60]!r} has no <answer> tag; if all of it is the answer, "
            "convert the file with mmr1-data convert rows --map question=…,answer=…,image=…"
        )
    return str(inside_answer(text))
