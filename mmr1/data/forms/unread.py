"""Refuse rows with media in columns that a form did not read, which would be lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from mmr1.data.forms.columns import guess, kind_of_column
from mmr1.data.forms.form import Row
from mmr1.data.forms.media_kinds import (
    LONGEST_PATH,
    Leaf,
    may_hold_media,
    media_in,
    named_kind,
)
from mmr1.data.media_values import locate, media_refs
from mmr1.types import MediaRef
from mmr1.vision.images import load_image


def refuse_unread(
    row: Row, used: Sequence[str], refs: Sequence[MediaRef], values: Sequence[Any], root: Path
) -> None:
    """Check that no column with media was left behind.

    A row without media may not have any such column: not even a path whose file is missing, or an
    id of a picture. Beside media that were read, a column may repeat them: what counts is the file,
    not its name or how many there are. It may name a file that is not there, but not in a column
    that other rows are read from.

    Args:
        row: The row.
        used: Columns that the form reads as something else.
        refs: The media that were read.
        values: The values that they were read from: of images and of videos.
        root: Folder of the media.

    Raises:
        ValueError: Names the column and what to do.
    """
    for name, value in row.items():
        if value is None or name in used or any(value is read for read in values):
            continue
        if not may_hold_media(value) and (refs or named_kind(name) is None):
            continue  # nearly all columns: what follows takes time
        _refuse_if_unread(row, name, refs, values, root)


def _refuse_if_unread(
    row: Row, name: str, refs: Sequence[MediaRef], values: Sequence[Any], root: Path
) -> None:
    value = row[name]
    found = list(media_in(value))
    if refs and not found:
        return
    flat = list(_flat(values))
    if _is_read(value, {id(item) for item in flat}):
        return
    names = {ref.path.name for ref in refs if ref.path}
    names |= {PurePath(str(v["path"])).name for v in flat if _has_path(v)}
    read_from = kind_of_column(name)
    gone = 0
    for kind, leaf in found:
        same = refs and _is_same(leaf, refs, root)
        if same is None and PurePath(str(leaf)).name not in names:
            gone += 1  # named by its author's machine, or another medium
            same = read_from is None or gone <= sum(r.data is not None for r in refs)
        if same is False or not refs:
            raise ValueError(_reason(row, name, kind, leaf, refs))
    if not refs and (of_name := named_kind(name)) and _names_something(value):
        raise ValueError(_reason_of_id(name, of_name, value))


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        yield value
        if isinstance(value, list | tuple):
            yield from value


def _is_read(value: Any, read: set[int]) -> bool:
    if id(value) in read:
        return True
    listed = isinstance(value, list | tuple) and len(value) > 0
    return listed and all(id(item) in read for item in value)


def _is_same(leaf: Leaf, refs: Sequence[MediaRef], root: Path) -> bool | None:
    """True if a medium is one of those that were read; None for a path where no file is."""
    if isinstance(leaf, str) and len(leaf) <= LONGEST_PATH and not leaf.startswith("data:"):
        try:
            leaf = locate(root, leaf)
        except ValueError:
            return None
        if any(ref.path == leaf for ref in refs):
            return True
    (other,) = media_refs("image", leaf, root)
    return any(ref.read() == other.read() or _same_pixels(ref, other) for ref in refs)


def _same_pixels(ref: MediaRef, other: MediaRef) -> bool:
    """True for a picture that a loader decoded and stored anew."""
    try:
        return ref.kind == "image" and load_image(ref) == load_image(other)
    except ValueError:
        return False


def _has_path(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value.get("path"))


def _names_something(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_names_something, value))
    if isinstance(value, str):
        return bool(value.strip()) and value.strip().lower() not in ("none", "null", "nan")
    return isinstance(value, int) and not isinstance(value, bool)


_ARTICLES = {"image": "an image", "video": "a video", "audio": "sound"}


def _reason(row: Row, name: str, kind: str, leaf: Leaf, refs: Sequence[MediaRef]) -> str:
    shown = repr(leaf[:60]) if isinstance(leaf, str) else type(leaf).__name__
    loss = (
        f"; the row has {len(refs)} other media, and this one would be lost"
        if refs
        else "; the question would be text alone"
    )
    if kind == "audio":
        return (
            f"the column '{name}' holds sound ({shown}), and only images and videos are read; "
            "leave the row out, or remove the column if the question needs none"
        )
    columns = {f: c for f, c in guess(row).items() if f in ("question", "answer")}
    mapped = ",".join(f"{f}={c}" for f, c in (columns or {"question": "…", "answer": "…"}).items())
    drop = ", or remove it" if refs else ""
    return (
        f"the column '{name}' holds {_ARTICLES[kind]} ({shown}) that is not read{loss}. Name the "
        f"column: data.format.{kind}_key={name} (with prompt_key and answer_key), or mmr1-data "
        f"convert rows --map {mapped},{kind}={name}; or rename it to '{kind}s'{drop}"
    )


def _reason_of_id(name: str, kind: str, value: Any) -> str:
    if kind == "audio":
        return (
            f"the column '{name}' names sound ({value!r:.40}), and only images and videos are "
            "read; leave the row out, or remove the column if the question needs none"
        )
    return (
        f"the column '{name}' names {_ARTICLES[kind]} "
        f"({value!r:.40}), and the row holds no file of it; the question would be text alone. Add "
        f"a column '{kind}' with the path of the file, or name the one that has it "
        f"(data.format.{kind}_key, --map {kind}=…); remove '{name}' if the question needs none"
    )
