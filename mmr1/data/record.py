"""Canonical records: JSON Lines on disk <-> ``Sample``."""

from __future__ import annotations

import base64
import binascii
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from mmr1.data.lines import not_utf8
from mmr1.data.placeholders import (
    Tag,
    as_text,
    assign,
    check_text,
    literal,
    parts_of,
    split_tags,
    tags_of,
)
from mmr1.data.schema import VERSION, ImageItem, MediaItem, TextItem, Turn, parse
from mmr1.files import atomic
from mmr1.types import ContentPart, MediaKind, MediaRef, Message, Sample, TextPart
from mmr1.vision.paths import real_folder, real_path, resolve_media


def read_records(path: str | Path, media_root: str | Path | None = None) -> list[Sample]:
    """All samples of a canonical JSON Lines file.

    Args:
        path: The record file.
        media_root: Folder that media paths are relative to; the record file's own by default.

    Raises:
        ValueError: The file is missing or empty, an id appears twice, or a row is malformed, names
            media that are not under the root, or has another number of placeholders than media.
            Names file and line.
    """
    path = Path(path)
    root = Path(media_root) if media_root is not None else path.parent
    samples = list(_read_each(path, root))
    if not samples:
        raise ValueError(f"{path} holds no records; check the path or make the dataset again")
    ids: set[str] = set()
    for sample in samples:
        if sample.id in ids:
            raise ValueError(f"{path}: the id '{sample.id}' appears twice; ids must be unique")
        ids.add(sample.id)
    return samples


def _read_each(path: Path, root: Path) -> Iterator[Sample]:
    for number, line in read_lines(path):
        try:
            row = parse_json(line)
            yield decode(row, root)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error


def write_records(path: str | Path, samples: Iterable[Sample]) -> None:
    """Write a canonical JSON Lines file; it appears only once it is complete.

    Media files must lie under the folder of ``path``. Media given as bytes are embedded.
    """
    path = Path(path)
    with atomic(path) as file:
        for sample in samples:
            file.write(dump(encode(sample, path.parent)) + "\n")


Find = Callable[[Path, str], Path]
"""From the media root and the name of a medium to its file; raises ValueError if there is none."""


def decode(row: Any, root: Path, find: Find = resolve_media) -> Sample:
    """A row as a sample. Raises ValueError for a row that is not a valid record.

    Args:
        row: The record.
        root: Folder that media paths are relative to.
        find: Finds the file of a medium.
    """
    record = parse(row)
    check_roles([turn.role for turn in record.messages])
    listed = {
        "image": [MediaRef("image", find(root, name)) for name in record.images or ()],
        "video": [MediaRef("video", find(root, name)) for name in record.videos or ()],
    }
    tags = [tag for turn in record.messages for tag in _tags(turn)]
    refs = iter(assign(tags, listed) if tags or record.images or record.videos else ())
    messages = tuple([Message(t.role, tuple(_parts(t, refs, root, find))) for t in record.messages])
    return Sample(record.id, messages, record.answer, record.task, record.source, record.meta)


def check_roles(roles: Sequence[str]) -> None:
    """Raises ValueError where a tool answers what the assistant has not said."""
    for before, role in pairwise(("", *roles)):
        if role == "tool" and before not in ("assistant", "tool"):
            raise ValueError("a message of the role 'tool' answers no turn of the assistant")


def _tags(turn: Turn) -> list[Tag]:
    """The tags in a message that stand for the record's ``images`` and ``videos``."""
    if isinstance(turn.content, str):
        return tags_of(turn.content)
    for item in turn.content:
        if isinstance(item, TextItem) and "<" in item.text and (tags := tags_of(item.text)):
            raise ValueError(
                f"the text of a list content holds {tags[0]}; write the medium as a separate item, "
                f"or \\{tags[0]} for the text"
            )
    return [Tag(_kind(i)) for i in turn.content if isinstance(i, MediaItem) and _is_bare(i)]


def _is_bare(item: MediaItem) -> bool:
    return item.path is None and item.data is None


def _kind(item: MediaItem) -> MediaKind:
    return "image" if isinstance(item, ImageItem) else "video"


def _parts(turn: Turn, refs: Iterator[MediaRef], root: Path, find: Find) -> Iterator[ContentPart]:
    if isinstance(turn.content, str):
        yield from parts_of(split_tags(turn.content), refs)
        return
    for item in turn.content:
        if isinstance(item, TextItem):
            text = item.text
            yield TextPart(check_text(literal(text)) if "<" in text else text)
        else:
            yield next(refs) if _is_bare(item) else _medium(item, root, find)


def _medium(item: MediaItem, root: Path, find: Find) -> MediaRef:
    kind = _kind(item)
    if (item.width is None) != (item.height is None):
        raise ValueError("a medium has both a width and a height, or neither")
    size = (item.width, item.height) if item.width and item.height else None
    if item.data is None:
        assert item.path is not None
        return MediaRef(kind, find(root, item.path), None, size, item.options)
    if item.path is not None:
        raise ValueError(f"the {kind} '{item.path}' has both a path and data; keep one")
    return MediaRef(kind, None, _unbase64(item.data), size, item.options)


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"embedded media are not base64: {error}") from None


def encode(sample: Sample, root: Path) -> dict[str, Any]:
    """A sample as a row, with media paths relative to ``root``.

    Raises:
        ValueError: A media file lies outside the root.
    """
    folder = real_folder(str(root)).rstrip("/")
    row: dict[str, Any] = {
        "version": VERSION,
        "id": sample.id,
        "messages": [
            {"role": m.role, "content": [_item(part, folder) for part in m.parts]}
            for m in sample.messages
        ],
        "answer": sample.answer,
        "task": sample.task,
        "source": sample.source,
    }
    if sample.meta:
        row["meta"] = dict(sample.meta)
    return row


def _item(part: ContentPart, folder: str) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": as_text(part.text)}
    item: dict[str, Any] = {"type": part.kind}
    if part.path is None:
        item["data"] = base64.b64encode(part.read()).decode()
    else:
        path = real_path(str(part.path))
        if not path.startswith(f"{folder}/"):
            raise ValueError(f"{path} lies outside {folder}; records name media beside them")
        item["path"] = path.removeprefix(f"{folder}/")
    if part.size is not None:
        item["width"], item["height"] = part.size
    if part.options:
        item["options"] = dict(part.options)
    return item


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """``(line number from 1, line)`` of a UTF-8 file, blank lines left out; ``.gz`` is unpacked."""
    if not path.is_file():
        raise ValueError(
            f"{path}: no such file; check the path (data.train, trainer.validation.data)"
        )
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise ValueError(f"{path}:{number}: {not_utf8(error, path)}") from error


_READER = msgspec.json.Decoder()


def parse_json(text: str | bytes) -> Any:
    """Strict JSON: no NaN, no infinity, and no half of a surrogate pair, which UTF-8 has not.

    Raises:
        ValueError: If the text is not JSON in UTF-8.
    """
    try:
        return _READER.decode(text)
    except UnicodeDecodeError as error:
        whole = error if isinstance(text, str) else _undecodable(text) or error
        raise ValueError(not_utf8(whole)) from error
    except msgspec.MsgspecError as error:
        data = text.encode() if isinstance(text, str) else text
        raise ValueError(malformed(error, data)) from error
    except UnicodeEncodeError as error:  # a text that holds such a half
        raise ValueError(f"not valid JSON ({error.reason})") from error
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def malformed(error: msgspec.MsgspecError, data: bytes | memoryview) -> str:
    """The message for data that are no JSON: what is wrong, where, and what stands there."""
    reason, _, at = str(error).removeprefix("JSON is malformed: ").partition(" (byte ")
    there = bytes(data[int(at[:-1]) :][:12]).decode(errors="replace") if at else ""
    return f"not valid JSON ({reason}{f' at byte {at[:-1]}: {there!r}' if there else ''})"


def _undecodable(data: bytes) -> UnicodeDecodeError | None:
    """The error of decoding all of the data, by which its encoding is told."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error
    return None


_WRITER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def dump(value: Any) -> str:
    """One line of strict JSON. Raises ValueError for values that JSON cannot represent."""
    try:
        text = _WRITER.encode(value)
        text.encode()
    except (TypeError, UnicodeEncodeError) as error:
        raise ValueError(f"cannot be written as JSON: {error}") from error
    return text


_PARSED_WRITER = msgspec.json.Encoder()


def dump_parsed(value: Any) -> bytes:
    """A line like that of :func:`dump`, five times as fast, for values of :func:`parse_json`.

    Of other values msgspec would write NaN as null.
    """
    return msgspec.json.format(_PARSED_WRITER.encode(value), indent=0)
