"""Placeholders of media in a prompt, for families that repeat one token per vision token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmr1.vision.families.family import Kind
from mmr1.vision.prepare import PreparedMedia


def repeat_placeholders(
    kinds: Mapping[int, Kind], token_ids: Sequence[int], media: Sequence[PreparedMedia]
) -> list[int]:
    """Repeat each placeholder as often as its medium has merged tokens.

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
    remaining = iter(media)
    expanded: list[int] = []
    for token in token_ids:
        expanded.extend([token] * next(remaining).tokens if token in kinds else [token])
    return expanded


def repeated_spans(
    kinds: Mapping[int, Kind], token_ids: Sequence[int], media: Sequence[PreparedMedia]
) -> list[tuple[int, int]]:
    """``(first token, tokens)`` of each medium in what :func:`repeat_placeholders` returns."""
    remaining = iter(media)
    spans: list[tuple[int, int]] = []
    offset = 0
    for token in token_ids:
        length = 1
        if token in kinds:
            length = next(remaining).tokens
            spans.append((offset, length))
        offset += length
    return spans
