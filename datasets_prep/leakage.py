"""Find test samples in the training data: by the bytes of their media, by look, and by question."""

from __future__ import annotations

import re
import tempfile
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from pathlib import Path

import numpy as np

from datasets_prep.looks import ENOUGH, Index, Looks, reduced
from datasets_prep.outputs import joined, refuse_empty
from datasets_prep.record_files import content_digest, map_pieces, record_files, row_of, rows_of
from mmr1.data.ids import hash64
from mmr1.data.lines import Piece
from mmr1.files import stamp
from mmr1.parallel import one_pool
from mmr1.types import MediaRef, Sample
from mmr1.vision.images import load_grey

MIN_WORDS = 5
"""Shorter questions (``How many?``) occur in many datasets and are not evidence."""
NO_QUESTION = 0
BY = ("same file", "similar picture", "same question")
FILE, PICTURE, QUESTION = range(len(BY))


@dataclass(frozen=True, slots=True)
class Match:
    """A training sample and a test sample that show the same or ask the same."""

    first: str
    second: str
    by: str


@dataclass(frozen=True, slots=True)
class Leakage:
    """The overlap of test data with training data.

    Attributes:
        total: Number of test samples.
        leaks: Test samples that are in the training data: a medium has the same bytes, or a
            question without media has the same words.
        alike: Other test samples to look at: a picture looks the same, or a question about another
            medium has the same words.
    """

    total: int
    leaks: list[Match]
    alike: list[Match]


@one_pool()
def find_leaks(first: Path, second: Path) -> Leakage:
    """The test samples that are in the training data, and those that only look like it.

    Media are compared by their bytes, pictures also by their looks, and questions by their words.
    What is held in memory depends on the size of the test data alone.

    Args:
        first: Training records.
        second: Test records.

    Returns:
        With every match the first training sample that gave rise to it.

    Raises:
        ValueError: A record or a medium cannot be read.
    """
    files = record_files(second)
    marks = list(map_pieces(marks_of, files, f"reading {second.name}"))
    total = sum(len(part.positions) for part in marks)
    refuse_empty(second, total)
    with tempfile.TemporaryDirectory(prefix="mmr1-leakage-") as folder:
        _write_tests(Path(folder), files, marks)
        del marks
        found: dict[int, dict[int, str]] = {}
        training = record_files(first)
        for hits in map_pieces(hits_of, training, f"reading {first.name}", repeat((folder,))):
            for test, by, name in hits:
                found.setdefault(test, {}).setdefault(by, name)
        tests = sorted(found)
        names = _names(files, folder, tests)
        shows = np.isin(tests, np.load(Path(folder) / "record.npy"))
    leaks: list[Match] = []
    alike: list[Match] = []
    for test, has_media in zip(tests, shows.tolist(), strict=True):
        certain = FILE in found[test] or (QUESTION in found[test] and not has_media)
        (leaks if certain else alike).append(_match(names[test], found[test]))
    return Leakage(total, leaks, alike)


@dataclass
class Marks:
    """The marks by which the test records of a piece are recognised.

    Attributes:
        path: Their file.
        positions: ``[records]``, where their lines begin.
        questions: ``[records]``, hashes of the questions' words.
        media: ``[media]``, hashes of the bytes.
        record: ``[media]``, whose it is, counted in the piece.
        looks: Looks of the images, each once.
        pictures: ``[looks]``, hashes of their bytes.
    """

    path: Path
    positions: array[int] = field(default_factory=lambda: array("q"))
    questions: array[int] = field(default_factory=lambda: array("Q"))
    media: array[int] = field(default_factory=lambda: array("Q"))
    record: array[int] = field(default_factory=lambda: array("q"))
    looks: Looks = field(default_factory=lambda: Looks.of([]))
    pictures: array[int] = field(default_factory=lambda: array("Q"))


def marks_of(piece: Piece) -> Marks:
    """The marks of the records of a piece."""
    marks = Marks(piece.path)
    pictures: dict[int, np.ndarray] = {}
    for position, _, sample in rows_of(piece):
        for ref in sample.media:
            medium = hash64(content_digest(ref))
            marks.media.append(medium)
            marks.record.append(len(marks.positions))
            if ref.kind == "image" and medium not in pictures:
                pictures[medium] = reduced_picture(ref)
        marks.positions.append(position)
        marks.questions.append(question_hash(sample))
    marks.pictures.extend(pictures)
    marks.looks = Looks.of_reduced(list(pictures.values()))
    return marks


def reduced_picture(ref: MediaRef) -> np.ndarray:
    """The reduced picture for a look; a file is decoded once per process."""
    if ref.path is None:
        return reduced(load_grey(ref, ENOUGH))
    return _reduced_file(str(ref.path), stamp(ref.path))


@lru_cache(maxsize=1 << 12)
def _reduced_file(path: str, _stamp: tuple[int, ...]) -> np.ndarray:
    return reduced(load_grey(MediaRef("image", Path(path)), ENOUGH))


def _stacked(looks: Sequence[Looks]) -> Looks:
    empty = Looks.of([])
    return Looks(
        np.concatenate([empty.bits, *(look.bits for look in looks)]),
        np.concatenate([empty.tones, *(look.tones for look in looks)]),
    )


@dataclass(frozen=True, slots=True)
class Tests:
    """All test records, shared by the processes that read the training data.

    Attributes:
        media: ``[media]``, hashes of bytes, sorted.
        record: ``[media]``, whose it is.
        questions: ``[records]``, hashes, sorted.
        question_record: ``[records]``, whose it is.
        pictures: ``[looks]``, hashes of the bytes of the pictures in the index.
        looks: Looks of the same images.
        index: Index of these looks.
    """

    media: np.ndarray
    record: np.ndarray
    questions: np.ndarray
    question_record: np.ndarray
    pictures: np.ndarray
    looks: Looks
    index: Index


def _write_tests(folder: Path, files: Sequence[Path], marks: Sequence[Marks]) -> None:
    before = np.cumsum([0, *(len(part.positions) for part in marks)])
    media = joined(part.media for part in marks).astype(np.uint64)
    record = np.concatenate(
        [np.asarray(part.record) + start for part, start in zip(marks, before, strict=False)]
    )
    questions = joined(part.questions for part in marks)
    pictures, unique = np.unique(
        joined(part.pictures for part in marks).astype(np.uint64), return_index=True
    )
    looks = _stacked([part.looks for part in marks])
    by_medium, by_question = np.argsort(media, kind="stable"), np.argsort(questions, kind="stable")
    for name, values in {
        "media": media[by_medium],
        "record": record[by_medium],
        "questions": questions[by_question],
        "question_record": by_question,
        "pictures": pictures,
        "bits": looks.bits[unique],
        "tones": looks.tones[unique],
        "positions": joined(part.positions for part in marks),
        "files": np.repeat([files.index(p.path) for p in marks], [len(p.positions) for p in marks]),
    }.items():
        np.save(folder / f"{name}.npy", values)


@lru_cache(maxsize=1)
def read_tests(folder: str) -> Tests:
    """The test records that are in a folder, mapped into memory."""

    def mapped(name: str) -> np.ndarray:
        path = Path(folder) / f"{name}.npy"
        return np.load(path, mmap_mode="r") if np.load(path, mmap_mode="r").size else np.load(path)

    looks = Looks(mapped("bits"), mapped("tones"))
    return Tests(
        mapped("media"),
        mapped("record"),
        mapped("questions"),
        mapped("question_record"),
        mapped("pictures"),
        looks,
        Index(looks),
    )


def hits_of(piece: Piece, folder: str) -> list[tuple[int, int, str]]:
    """``(test record, by what, training sample)`` for the first of each pair in a piece."""
    tests = read_tests(folder)
    names: list[str] = []
    questions, media = array("Q"), array("Q")
    owners = array("q")  # of the media, counted in the piece
    pictures: dict[int, int] = {}  # by the hashes of their bytes, the first owners
    unknown: dict[int, np.ndarray] = {}
    for number, (_, _, sample) in enumerate(rows_of(piece)):
        names.append(sample.id)
        questions.append(question_hash(sample))
        for ref in sample.media:
            media.append(medium := hash64(content_digest(ref)))
            owners.append(number)
            if ref.kind == "image" and medium not in pictures and len(tests.pictures):
                pictures[medium] = number
                if not _is_in(tests.pictures, medium):  # else its look is known
                    unknown[medium] = reduced_picture(ref)
    hits: dict[tuple[int, int], str] = {}
    for at, test in _equal(tests.media, tests.record, media):
        hits.setdefault((test, FILE), names[owners[at]])
    for medium, similar in _similar(tests, pictures, unknown):
        for _, test in _equal(tests.media, tests.record, array("Q", [similar])):
            hits.setdefault((test, PICTURE), names[pictures[medium]])
    for number, test in _equal(tests.questions, tests.question_record, questions):
        if questions[number] != NO_QUESTION:
            hits.setdefault((test, QUESTION), names[number])
    return [(test, by, name) for (test, by), name in hits.items()]


def _similar(
    tests: Tests, pictures: Iterable[int], unknown: Mapping[int, np.ndarray]
) -> Iterator[tuple[int, int]]:
    """Pairs of a picture and another one of the test data that looks like it, by their hashes."""
    looks = Looks.of_reduced(list(unknown.values()))
    place = {medium: at for at, medium in enumerate(unknown)}
    for medium in pictures:
        own, at = (looks, place[medium]) if medium in place else (tests.looks, _at(tests, medium))
        (known,) = tests.index.find(Looks(own.bits[at : at + 1], own.tones[at : at + 1]))
        yield from ((medium, p) for p in tests.pictures[known].tolist() if p != medium)


def _at(tests: Tests, medium: int) -> int:
    return int(np.searchsorted(tests.pictures, np.uint64(medium)))


def _is_in(ordered: np.ndarray, value: int) -> bool:
    at = int(np.searchsorted(ordered, np.uint64(value)))
    return at < len(ordered) and int(ordered[at]) == value


def _equal(
    ordered: np.ndarray, record: np.ndarray, values: array[int]
) -> Iterator[tuple[int, int]]:
    """``(index of a value, record that has it)``, in the order of the values."""
    wanted = np.frombuffer(values, np.uint64) if values else np.array([], np.uint64)
    starts, ends = (np.searchsorted(ordered, wanted, side) for side in ("left", "right"))
    for index in np.flatnonzero(ends > starts).tolist():
        for test in record[starts[index] : ends[index]].tolist():
            yield index, test


def _names(files: Sequence[Path], folder: str, tests: Sequence[int]) -> dict[int, str]:
    """The ids of test records, read from their lines."""
    positions, file_of = (np.load(Path(folder) / f"{name}.npy") for name in ("positions", "files"))
    names = {}
    for test in tests:
        with files[int(file_of[test])].open("rb") as file:
            file.seek(int(positions[test]))
            names[test] = row_of(file.readline(), int(positions[test]))["id"]
    return names


def _match(name: str, by: dict[int, str]) -> Match:
    return Match(by[min(by)], name, " and ".join(BY[kind] for kind in sorted(by)))


def question_hash(sample: Sample) -> int:
    """A hash of the words of a question, or ``NO_QUESTION`` if they are too few."""
    question = normalised(sample.question)
    return hash64(question) if question.count(" ") >= MIN_WORDS - 1 else NO_QUESTION


def normalised(question: str) -> str:
    """The words of a question, without case, punctuation and accents."""
    text = unicodedata.normalize("NFKD", question).casefold()
    return " ".join(re.findall(r"[^\W_]+", text))
