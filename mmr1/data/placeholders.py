"""Replace ``<image>`` and ``<video>`` tags in a conversation by the row's media."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mmr1.types import ContentPart, MediaRef, Message, TextPart

_TAG = re.compile(r"(\\*)<(image|video)(?:[ _]?(\d+))?>")
"""``<image>``, ``<image1>``, ``<image 1>``, ``<image_1>`` and the same for videos. After a
backslash it is text; after two, as LaTeX ends a line, it is a tag."""

# Every engine would count one of the first in a user's text as a medium. The others end a message
# or begin one: what follows them would be taken for another speaker's.
_RESERVED = re.compile(
    r"<\|(?:image_pad|video_pad|audio_pad|IMAGE|VIDEO|AUDIO|audio_start|audio_end|audio_bos"
    r"|audio_eos|vision_bos|vision_eos|vision_start|vision_end|vision_pad"
    r"|im_start|im_end|endoftext|begin_of_text|end_of_text|start_header_id|end_header_id|eot_id"
    r"|eom_id|user|assistant|system|observation|end|begin_of_image|end_of_image|image|video)\|>"
    r"|</?(?:start|end)_of_turn>|<IMG_CONTEXT>|<audio>"
)


@dataclass(frozen=True, slots=True)
class Tag:
    """A placeholder: ``image`` or ``video``, and the number of its medium, if written.

    Numbers count from 1.
    """

    kind: str
    number: int | None = None

    def __str__(self) -> str:
        return f"<{self.kind}>" if self.number is None else f"<{self.kind}{self.number}>"


def check_text(text: str) -> str:
    """Returns the text. Raises ValueError if it contains a token of chat templates or of vision."""
    if "<" in text and (token := _RESERVED.search(text)):  # few texts have one: all are asked
        raise ValueError(f"the text holds the model's own token {token[0]}; remove it")
    return text


def split_tags(text: str) -> Iterator[str | Tag]:
    """The pieces of text and the tags between them, in order; empty pieces are left out.

    A tag after a backslash is text, without the backslash.

    >>> [str(piece) for piece in split_tags("<image>Which <video 1>?")]
    ['<image>', 'Which ', '<video1>', '?']
    >>> list(split_tags("Write \\\\<image> here"))
    ['Write <image> here']
    """
    piece, end = "", 0
    for match in _TAG.finditer(text) if "<" in text else ():
        escapes, begin = len(match[1]), match.start(2) - 1
        piece += text[end:begin]
        end = match.end()
        if escapes % 2:
            piece = piece[: len(piece) - escapes // 2 - 1] + text[begin:end]
            continue
        if piece:
            yield piece
        yield Tag(match[2], int(match[3]) if match[3] else None)
        piece = ""
    if piece + text[end:]:
        yield piece + text[end:]


def as_text(text: str) -> str:
    """The text with a backslash before each tag, which then stands for itself.

    >>> list(split_tags(as_text("See <image>.")))
    ['See <image>.']
    """
    if "<" not in text:
        return text
    return _TAG.sub(lambda match: "\\" * (len(match[1]) + 1) + match[0], text)


def literal(text: str) -> str:
    """The text that stands for itself: a tag without its backslash, any other tag as it is."""
    return "".join(map(str, split_tags(text)))


def tags_of(text: str) -> list[Tag]:
    """The tags of a text, in order."""
    return [piece for piece in split_tags(text) if isinstance(piece, Tag)]


def fill(
    turns: Sequence[tuple[str, str]],
    images: Sequence[MediaRef] = (),
    videos: Sequence[MediaRef] = (),
) -> tuple[Message, ...]:
    """Messages with the tags replaced by the media.

    Args:
        turns: ``(role, text with tags)`` pairs.
        images: Images that the image tags stand for; see :func:`assign`.
        videos: Videos that the video tags stand for.

    Raises:
        ValueError: If :func:`assign` raises it.
    """
    split = [(role, list(split_tags(text))) for role, text in turns]
    tags = [piece for _, pieces in split for piece in pieces if isinstance(piece, Tag)]
    refs = iter(assign(tags, {"image": images, "video": videos}))
    return tuple(Message(role, tuple(parts_of(pieces, refs))) for role, pieces in split)


def parts_of(pieces: Iterable[str | Tag], refs: Iterator[MediaRef]) -> Iterator[ContentPart]:
    """The pieces of a text with the tags among them replaced by the next of the media."""
    for piece in pieces:
        yield next(refs) if isinstance(piece, Tag) else TextPart(check_text(piece))


def assign(tags: Sequence[Tag], media: Mapping[str, Sequence[MediaRef]]) -> list[MediaRef]:
    """The medium of each tag.

    Tags without a number take the media of their kind in order, one each. Numbered tags name their
    medium, in any order and as often as they like.

    Args:
        tags: All placeholders of a conversation, in order.
        media: The media of each kind, in the order of the row.

    Raises:
        ValueError: A tag has no medium, a medium has no tag, or tags with and without numbers are
            mixed and contradict each other.
    """
    numbers = {kind: _numbers(kind, tags, len(refs)) for kind, refs in media.items()}
    places = {kind: iter(of_kind) for kind, of_kind in numbers.items()}
    return [media[tag.kind][next(places[tag.kind]) - 1] for tag in tags]


def _numbers(kind: str, tags: Sequence[Tag], count: int) -> list[int]:
    """The numbers of the media that the tags of this kind stand for, from 1."""
    written = [tag.number for tag in tags if tag.kind == kind]
    if not written or None in written:
        return _in_order(kind, written, count)
    numbers = [number for number in written if number is not None]
    for number in numbers:
        if not 1 <= number <= count:
            raise ValueError(
                f"<{kind}{number}> names the {kind} {number}, and there are {count} {kind}(s), "
                "counted from 1"
            )
    for number in range(1, count + 1):
        if number not in numbers:
            raise ValueError(
                f"the {kind} {number} has no placeholder; write <{kind}{number}> where it belongs, "
                "or remove it"
            )
    return numbers


def _in_order(kind: str, written: Sequence[int | None], count: int) -> list[int]:
    if len(written) != count:
        raise ValueError(
            f"{len(written)} <{kind}> placeholder(s) in the messages but {count} {kind}(s); "
            f"write one <{kind}> where each {kind} belongs"
        )
    for place, number in enumerate(written, 1):
        if number not in (None, place):
            raise ValueError(
                f"<{kind}> and <{kind}{number}> are mixed, and <{kind}{number}> is the placeholder "
                f"number {place}; number all of them or none"
            )
    return list(range(1, count + 1))


def prepend(
    turns: Sequence[tuple[str, str]], images: int, videos: int = 0
) -> list[tuple[str, str]]:
    """Put tags before the first user turn of a conversation without any tags.

    For datasets that write no tags because the media always come first.
    """
    if any("<" in text and tags_of(text) for _, text in turns):
        return list(turns)
    first = next((i for i, (role, _) in enumerate(turns) if role == "user"), None)
    if first is None:
        raise ValueError("no user message to put the media before")
    tags = "<image>" * images + "<video>" * videos
    return [(role, tags + text if i == first else text) for i, (role, text) in enumerate(turns)]
