"""Charades-STA: temporal grounding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from datasets_prep.converters.base import Converter
from mmr1.data.forms.catalog.moments import described_moment
from mmr1.data.forms.form import Place, Row
from mmr1.data.readers import read_rows
from mmr1.data.readers.classes import Located
from mmr1.data.record import read_lines
from mmr1.types import MediaRef, Sample
from mmr1.vision.videos import probe_video


# Charades-STA: described moments, as text lines or as JSON by video.
def _charades_sta_rows(path: Path) -> Iterator[Located]:
    """One row per moment, from ``VID start end##sentence`` lines or from the JSON format."""
    if path.suffix == ".txt":
        for number, line in read_lines(path):
            yield f"{path}:{number}", _line(line)
        return
    for where, row in read_rows(path):
        moments = zip(row.get("timestamps", []), row.get("sentences", []), strict=False)
        duration = row.get("duration", row.get("video_duration"))
        for number, (span, sentence) in enumerate(moments):
            yield (
                f"{where}.{number}",
                {"video": row["id"], "span": span, "sentence": sentence, "duration": duration},
            )


def _line(line: str) -> Row | ValueError:
    head, separator, sentence = line.strip().partition("##")
    fields = head.split()
    if not separator or len(fields) != 3:
        return ValueError("not of the form 'VID start end##sentence'")
    try:
        span = [float(fields[1]), float(fields[2])]
    except ValueError as error:
        return error
    return {"video": fields[0], "span": span, "sentence": sentence, "duration": None}


def _convert_charades_sta(row: Row, place: Place) -> Iterator[Sample]:
    """The moment. A missing duration is read from the video file."""
    start, end = row["span"]
    if start >= end:  # before the file is looked up, so that the error names the row, not the media
        raise ValueError(f"the moment ends ({end:g} s) before it begins ({start:g} s)")
    path = video_file(place.root, row["video"])
    duration = row["duration"]
    if duration is None:
        header = probe_video(MediaRef("video", place.root / path))
        duration = header.frames / header.fps
    yield described_moment(row, place, path, row["sentence"], row["span"], duration)


CHARADES_STA = Converter(
    name="charades_sta",
    description="Charades-STA: when in the video does this happen?",
    source="Charades-STA (jiyanggao/TALL) and Time-R1's JSON forms of it",
    licence="Charades: non-commercial, no redistribution of the videos",
    files=("charades*.txt", "charades_test*.json", "train*.json", "novel*.json"),
    convert=_convert_charades_sta,
    rows=_charades_sta_rows,
)


_SUFFIXES = (".mp4", ".avi", ".mkv", ".webm")


def video_file(root: Path, name: str) -> str:
    """The path, relative to the root, of the video with this name in any of the usual places.

    Raises:
        ValueError: If no video has the name.
    """
    for folder in ("", "videos/", "Charades_v1/", "Charades_v1_480/"):
        for suffix in _SUFFIXES:
            if (root / f"{folder}{name}{suffix}").is_file():
                return f"{folder}{name}{suffix}"
    raise ValueError(f"the video '{name}' ({', '.join(_SUFFIXES)}) is not under {root}")
