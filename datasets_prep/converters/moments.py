"""Datasets of temporal grounding: Charades-STA, Time-R1, TVGBench."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from datasets_prep.converters.base import Changed, Converter
from mmr1.data.forms.catalog.moments import (
    described_moment,
    read_time_r1_clipped,
    read_tvgbench_clipped,
)
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


def _convert_charades_sta(row: Row, place: Place) -> Iterator[Sample | Changed]:
    """The moment. A missing duration is read from the video file."""
    start, end = row["span"]
    if start >= end:  # before the file is looked up, so that the error names the row, not the media
        raise ValueError(f"the moment ends ({end:g} s) before it begins ({start:g} s)")
    path = video_file(place.root, row["video"])
    duration = row["duration"]
    if duration is None:
        header = probe_video(MediaRef("video", place.root / path))
        duration = header.frames / header.fps
    yield counted(*described_moment(row, place, path, row["sentence"], row["span"], duration))


CHARADES_STA = Converter(
    name="charades_sta",
    description="Charades-STA: when in the video does this happen?",
    source="Charades-STA (jiyanggao/TALL) and Time-R1's JSON forms of it",
    licence="Charades: non-commercial, no redistribution of the videos",
    files=("charades*.txt", "charades_test*.json", "train*.json", "novel*.json"),
    convert=_convert_charades_sta,
    rows=_charades_sta_rows,
)


# Time-R1's training rows: one moment each, in a video or in a segment of one.
def _convert_time_r1(row: Row, place: Place) -> Iterator[Sample | Changed]:
    """The moment; with ``video_start`` and ``video_end``, times count from that segment's start."""
    yield counted(*read_time_r1_clipped(row, place))


TIME_R1 = Converter(
    name="time_r1",
    description="Time-R1 temporal grounding (2.5k training moments)",
    source="xiaomi-research/time-r1 dataset/timer1/annotations",
    licence="Apache-2.0 (Time-R1); the videos have their own terms",
    files=("*train_2k5*.json",),
    convert=_convert_time_r1,
)


# TVGBench: moments as ``"13.4-28.1"``.
def _convert_tvgbench(row: Row, place: Place) -> Iterator[Sample | Changed]:
    """The moment; start and end are the two numbers of the answer."""
    yield counted(*read_tvgbench_clipped(row, place))


TVGBENCH = Converter(
    name="tvgbench",
    description="TVGBench: temporal grounding test of Time-R1",
    source="xiaomi-research/time-r1 dataset/timer1/annotations",
    licence="Apache-2.0 (Time-R1); the videos have their own terms; a test set",
    files=("*tvgbench*.json",),
    convert=_convert_tvgbench,
)


_SUFFIXES = (".mp4", ".avi", ".mkv", ".webm")


def counted(sample: Sample, clipped: bool) -> Sample | Changed:
    """The sample of a moment, as changed if its end was clipped."""
    return Changed(sample, "end clipped to the video's duration") if clipped else sample


def video_file(root: Path, name: str) -> str:
    """The path, relative to the root, of the video with this name in any of the usual places.

    Raises:
        ValueError: There is none.
    """
    for folder in ("", "videos/", "Charades_v1/", "Charades_v1_480/"):
        for suffix in _SUFFIXES:
            if (root / f"{folder}{name}{suffix}").is_file():
                return f"{folder}{name}{suffix}"
    raise ValueError(f"the video '{name}' ({', '.join(_SUFFIXES)}) is not under {root}")
