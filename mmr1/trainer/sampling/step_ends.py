"""Where the steps of a completion end: in its text, and among its tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from mmr1.types import Completion

Decode = Callable[[Sequence[int]], str]


def step_ends(text: str, separator: str) -> list[int]:
    """The number of characters up to the end of each step; blank steps do not count.

    >>> step_ends("one.\\n\\ntwo.", "\\n\\n")
    [4, 10]
    """
    ends, start = [], 0
    for step in text.split(separator):
        end = start + len(step)
        if step.strip():
            ends.append(end)
        start = end + len(separator)
    return ends


def token_at(completion: Completion, end: int, decode: Decode) -> int:
    """Index of the first token with which the text reaches ``end`` characters.

    A step that ends with the text takes the end-of-sequence token with it.

    Args:
        decode: Token ids to text, special tokens left out.
    """
    ids = completion.token_ids.tolist()
    if end >= len(completion.text):
        return len(ids) - 1
    return bisect_left(range(len(ids)), end, key=lambda i: len(decode(ids[: i + 1])))
