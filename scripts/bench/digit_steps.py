"""Step rewards for the quickstart's digits: the thought by its form, the answer by its truth."""

from __future__ import annotations

from typing import Any

END = "</think>"


def judge(completion: str, sample: Any) -> list[tuple[int, float]]:
    """The thought's end with 0.5 for a closed thought, the text's end with 1 if it is right."""
    thought = completion.find(END) + len(END) if END in completion else 0
    right = completion[thought:].strip() == f"<answer>{sample.answer}</answer>"
    whole = (len(completion), float(right and thought > 0))
    return [(thought, 0.5), whole] if thought else [whole]
