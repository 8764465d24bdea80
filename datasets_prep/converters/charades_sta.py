"""Charades-STA: described moments, as text lines or as JSON by video."""

from collections.abc import Iterator
from pathlib import Path

from datasets_prep.converters.base import Changed, Converter
from datasets_prep.moments import counted, video_file
from mmr1.data.forms.catalog.moments import described_moment
from mmr1.data.forms.form import Place, Row
from mmr1.data.readers import read_rows
from mmr1.data.readers.classes import Located
from mmr1.data.record import read_lines
from mmr1.types import MediaRef, Sample
from mmr1.vision.videos import probe_video


def rows(path: Path) -> Iterator[Located]:
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


def convert(row: Row, place: Place) -> Iterator[Sample | Changed]:
    """The moment. If the row has no duration, it is read from the video file."""
    start, end = row["span"]
    if start >= end:  # before the file is looked up, so that the error names the row, not the media
        raise ValueError(f"the moment ends ({end:g} s) before it begins ({start:g} s)")
    path = video_file(place.root, row["video"])
    duration = row["duration"]
    if duration is None:
        header = probe_video(MediaRef("video", place.root / path))
        duration = header.frames / header.fps
    yield counted(*described_moment(row, place, path, row["sentence"], row["span"], duration))


CONVERTER = Converter(
    name="charades_sta",
    description="Charades-STA: when in the video does this happen?",
    source="Charades-STA (jiyanggao/TALL) and Time-R1's JSON forms of it",
    licence="Charades: non-commercial, no redistribution of the videos",
    files=("charades*.txt", "charades_test*.json", "train*.json", "novel*.json"),
    convert=convert,
    rows=rows,
)
