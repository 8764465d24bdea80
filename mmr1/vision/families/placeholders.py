"""Placeholders of media in a prompt, and the tokens that take their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from mmr1.vision.families.family import Kind
from mmr1.vision.prepare import Medium

Expansion = Callable[[int, Medium], list[int]]
"""What takes the place of a placeholder: by its token id and its medium."""


def repeated(placeholder: int, medium: Medium) -> list[int]:
    """The placeholder as often as its medium has merged tokens: an ``Expansion``."""
    return [placeholder] * medium.tokens


def expand_placeholders(
    kinds: Mapping[int, Kind],
    token_ids: Sequence[int],
    media: Sequence[Medium],
    expansion: Expansion = repeated,
) -> list[int]:
    """Each placeholder replaced by what its medium expands to.

    Args:
        kinds: Placeholder token ids and the kind of medium that each stands for.

    Raises:
        ValueError: Placeholders and media differ in number or in kind.
    """
    in_prompt = [kinds[token] for token in token_ids if token in kinds]
    in_sample = [medium.kind for medium in media]
    if in_prompt != in_sample:
        raise ValueError(
            f"the prompt has placeholders for {in_prompt} and the media are {in_sample}"
        )
    pieces = _pieces(kinds, token_ids, media, expansion)
    return [token for _, piece in pieces for token in piece]


def expanded_spans(
    kinds: Mapping[int, Kind],
    token_ids: Sequence[int],
    media: Sequence[Medium],
    expansion: Expansion = repeated,
) -> list[tuple[int, int]]:
    """``(first token, tokens)`` of each medium in what :func:`expand_placeholders` returns."""
    spans: list[tuple[int, int]] = []
    offset = 0
    for is_medium, piece in _pieces(kinds, token_ids, media, expansion):
        if is_medium:
            spans.append((offset, len(piece)))
        offset += len(piece)
    return spans


def _pieces(
    kinds: Mapping[int, Kind],
    token_ids: Sequence[int],
    media: Sequence[Medium],
    expansion: Expansion,
) -> Iterator[tuple[bool, list[int]]]:
    """Whether each token of the prompt is a medium's, and its replacement."""
    remaining = iter(media)
    for token in token_ids:
        is_medium = token in kinds
        yield is_medium, expansion(token, next(remaining)) if is_medium else [token]
