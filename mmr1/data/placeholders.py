"""Replace ``<image>`` and ``<video>`` tags in a conversation by the media of the row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mmr1.types import ContentPart, MediaRef, Message, TextPart

TAG = re.compile(r"<(image|video)(?: ?\d+)?>")
"""``<image>``, ``<image1>``, ``<image 1>`` and the same for videos, as datasets write them."""

# Every engine would count one of these in a user's text as a medium.
_RESERVED = re.compile(r"<\|(?:image_pad|video_pad|vision_start|vision_end|vision_pad)\|>")


def check_text(text: str) -> str:
    """Returns the text. Raises ValueError if it contains one of the model's vision tokens."""
    if token := _RESERVED.search(text):
        raise ValueError(f"the text holds the model's own token {token[0]}; remove it")
    return text


def split_tags(text: str) -> Iterator[str]:
    """Pieces of text and, between them, the kinds of the tags; begins and ends with text.

    >>> list(split_tags("<image>Which <video 1>?"))
    ['', 'image', 'Which ', 'video', '?']
    """
    yield from TAG.split(text)


def fill(
    turns: Sequence[tuple[str, str]],
    images: Sequence[MediaRef] = (),
    videos: Sequence[MediaRef] = (),
) -> tuple[Message, ...]:
    """Messages with the tags replaced by the media, in order within each kind.

    Args:
        turns: ``(role, text with tags)`` pairs.
        images: One per image tag.
        videos: One per video tag.

    Raises:
        ValueError: The number of tags of a kind is not the number of its media.
    """
    media = {"image": list(images), "video": list(videos)}
    check_counts([kind for _, text in turns for kind in TAG.findall(text)], media)
    return tuple(Message(role, tuple(_parts(text, media))) for role, text in turns)


def _parts(text: str, media: dict[str, list[MediaRef]]) -> Iterator[ContentPart]:
    for position, piece in enumerate(split_tags(text)):
        if position % 2:
            yield media[piece].pop(0)
        elif piece:
            yield TextPart(check_text(piece))


def check_counts(placeholders: Sequence[str], media: dict[str, list[MediaRef]]) -> None:
    """Raise ValueError unless every kind has as many placeholders as media."""
    for kind, refs in media.items():
        if (count := placeholders.count(kind)) != len(refs):
            raise ValueError(
                f"{count} <{kind}> placeholder(s) in the messages but {len(refs)} {kind}(s); "
                f"write one <{kind}> where each {kind} belongs"
            )


def prepend(
    turns: Sequence[tuple[str, str]], images: int, videos: int = 0
) -> list[tuple[str, str]]:
    """Put tags before the first user turn of a conversation without any tags.

    For datasets that write no tags because the media always come first.
    """
    if any(TAG.search(text) for _, text in turns):
        return list(turns)
    first = next((i for i, (role, _) in enumerate(turns) if role == "user"), None)
    if first is None:
        raise ValueError("no user message to put the media before")
    tags = "<image>" * images + "<video>" * videos
    return [(role, tags + text if i == first else text) for i, (role, text) in enumerate(turns)]
