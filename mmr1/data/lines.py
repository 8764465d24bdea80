"""JSON Lines files in pieces of whole lines, so that several processes read one file."""

from __future__ import annotations

import lzma
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

BROKEN = (EOFError, OSError, zlib.error, lzma.LZMAError)
"""What reading a damaged archive raises."""
PIECE = 1 << 20
"""Bytes of a piece: some thousand records of text."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The whole lines of a file from byte ``start`` to byte ``end``."""

    path: Path
    start: int
    end: int

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.end - self.start

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """``(position of its first byte in the file, line)``, blank lines left out."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            position = self.start
            for line in file.read(self.size).split(b"\n"):
                if line.strip():
                    yield position, line
                position += len(line) + 1


def pieces(paths: Iterable[Path], size: int = PIECE) -> Iterator[Piece]:
    """The lines of the files, in pieces of about ``size`` bytes.

    Raises:
        ValueError: A file is missing.
    """
    for path in paths:
        if not path.is_file():
            raise ValueError(
                f"{path}: no such file; check the path (data.train, trainer.validation.data)"
            )
        total = path.stat().st_size
        with path.open("rb") as file:
            start = 0
            while start < total:
                file.seek(min(start + size, total))
                file.readline()
                yield Piece(path, start, file.tell())
                start = file.tell()


def text_of(line: bytes, position: int) -> str:
    """A line as text; without the byte-order mark at the beginning of a file.

    Raises:
        ValueError: If the line is not UTF-8.
    """
    try:
        return line.decode("utf-8-sig" if position == 0 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(not_utf8(error)) from error


_ENCODINGS = ("GBK", "SHIFT_JIS", "EUC-KR", "BIG5", "CP1252")
_HIGH = b"[\x80-\xff]"
_LOOKED_AT = 64 << 20
"""Bytes of a file that an encoding has to decode, and the rest of their line."""


def not_utf8(error: UnicodeDecodeError, path: Path | None = None) -> str:
    """The message for a text in another encoding, with what to do about it.

    Args:
        error: How UTF-8 failed.
        path: The file, of which an encoding has to decode all.
    """
    data = error.object
    if path is not None and path.suffix != ".gz":
        with path.open("rb") as file:
            data = file.read(_LOOKED_AT) + file.readline()
    fitting = _encodings_of(data)
    if not fitting:
        return f"not UTF-8 text ({error.reason}), nor in an encoding that is known; write it anew"
    others = f"; it may be {' or '.join(fitting[1:])}" if len(fitting) > 1 else ""
    return (
        f"not UTF-8 text ({error.reason}); save it as UTF-8, as iconv -f {fitting[0]} -t UTF-8 "
        f"does{others}"
    )


def _encodings_of(data: bytes) -> list[str]:
    """The encodings that decode all of the bytes, the likeliest first.

    Nearly any bytes are CP1252, whose accents stand alone; bytes of Chinese come in pairs.
    """
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return ["UTF-16"]
    found = [name for name in _ENCODINGS if _decodes(data, name)]
    high, paired = (sum(map(len, re.findall(p, data))) for p in (_HIGH, _HIGH + b"{2,}"))
    return found if 2 * paired > high else found[::-1]


def _decodes(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def line_numbers(path: Path, positions: Iterable[int]) -> dict[int, int]:
    """The number, from 1, of the line that begins at each of these bytes."""
    numbers: dict[int, int] = {}
    number, block_start, block = 1, 0, b""
    with path.open("rb") as file:
        done = 0
        for position in sorted(set(positions)):
            while position > block_start + len(block):
                number += block.count(b"\n", done)
                block_start, done = block_start + len(block), 0
                if not (block := file.read(PIECE)):
                    raise IndexError(f"{path} has no byte {position}")
            number += block.count(b"\n", done, position - block_start)
            done = position - block_start
            numbers[position] = number
    return numbers


def total_size(paths: Iterable[Path]) -> int:
    """Bytes of the files together."""
    return sum(os.path.getsize(path) for path in paths)  # noqa: PTH202
