"""Problems with pictures: Geometry3K, MATH-Vision, MathVerse, MM-Eureka, MMK12."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from datasets_prep.converters.base import Converter, noted
from mmr1.data.forms import read_row
from mmr1.data.forms.assemble import assemble, assemble_question
from mmr1.data.forms.columns import images_of
from mmr1.data.forms.form import Place, Row
from mmr1.data.forms.options import LETTERS, with_options
from mmr1.types import Sample


# Geometry3K as InterGPS publishes it: a folder per problem.
def _convert_geometry3k(row: Row, place: Place) -> Iterator[Sample]:
    """The question in LaTeX and the value behind the letter of the answer."""
    choices, letter = row["compact_choices"], str(row["answer"]).strip()
    if letter not in LETTERS[: len(choices)] or not letter:
        raise ValueError(f"the answer '{letter}' is not a letter of the {len(choices)} choices")
    value = choices[LETTERS.index(letter)]
    yield assemble(
        {k: row[k] for k in ("id", "data_type", "precise_value") if k in row},
        place,
        [("user", row.get("annotat_text") or row["compact_text"])],
        images="img_diagram.png",
        answer=f"${value}$",
        task="math",
        untagged=True,
        meta={"choices": list(choices), "letter": letter},
    )


GEOMETRY3K = Converter(
    name="geometry3k",
    description="Geometry3K, original form: a folder per problem, LaTeX, four choices",
    source="InterGPS (lupantech/InterGPS)",
    licence="MIT (InterGPS)",
    files=("data.json",),
    convert=_convert_geometry3k,
)


_TAG = re.compile(r"<image(\d+)>")


# MATH-Vision: one image per problem, though the text may have several numbered tags.
def _convert_math_vision(row: Row, place: Place) -> Iterator[Sample]:
    """The first tag becomes the image; later tags become text, because the image shows all."""
    question = row["question"].replace("\\n<image", "\n<image")
    options = [_TAG.sub(r"picture \1", option) for option in row["options"]]
    tags = _TAG.findall(question)
    if len(tags) > 1:
        first = _TAG.search(question)
        assert first is not None
        later_text = _TAG.sub(r"(picture \1)", question[first.end() :])
        question = question[: first.end()] + later_text
    answer = str(row["answer"]).strip()
    if len(tags) > 1:
        change = "several tags for one picture: the first kept, the others named"
    elif not tags:
        change = "no tag: the picture put before the question"
    elif question != row["question"] or answer != row["answer"]:
        change = "literal line breaks or spaces of the answer cleaned"
    else:
        change = ""
    yield assemble(
        row, place, [("user", with_options(question, options))], images=images_of(row),
        answer=answer, task="choice" if options and answer in LETTERS else "math",
        used=("question", "options", "answer"), untagged=True,
        meta={**({"options": options} if options else {}), **noted(change)},
    )  # fmt: skip


MATH_VISION = Converter(
    name="math_vision",
    description="MATH-Vision (MATH-V): competition problems with pictures, letters and values",
    source="mathllm/MATH-V",
    licence="MIT; a test set",
    files=("test*.jsonl", "*.parquet"),
    convert=_convert_math_vision,
)


_CHOICES = re.compile(r"\n(?:Choices?|Options?):\n")
_OPTION_MATHVERSE = re.compile(r"^([A-Z])[:.](.*)$", re.MULTILINE)


# MathVerse: one problem in six versions, from text only to picture only.
def _convert_mathverse(row: Row, place: Place) -> Iterator[Sample]:
    """The question with each option on a separate line; text-only rows have no image."""
    question, *listed = _CHOICES.split(row["question"], maxsplit=1)
    options = {letter: text.strip() for letter, text in _OPTION_MATHVERSE.findall("".join(listed))}
    choice = row["question_type"] == "multi-choice"
    if choice and not options:
        raise ValueError("a multiple-choice question without choices")
    if not str(question).strip() and not row["image"]:
        raise ValueError("neither a question nor a picture")
    yield assemble_question(
        row, place, question if choice else row["question"], str(row["answer"]).strip(),
        images=row["image"], options=options if choice else None,
        task="choice" if choice else "math",
        used=("question", "answer", "query_wo", "query_cot", "model_answer", "question_type"),
    )  # fmt: skip


MATHVERSE = Converter(
    name="mathverse",
    description="MathVerse testmini: visual mathematics in six versions",
    source="ZrrSkywalker/MathVerse",
    licence="MIT; a test set",
    files=("*testmini*.json", "*.parquet"),
    convert=_convert_mathverse,
)


_PREFIX = re.compile(r"(?:file:///?)?/?inspire/hdd/")


# MM-Eureka: a conversation as a JSON string, with absolute image paths of its authors' machine.
def _convert_mm_eureka(row: Row, place: Place) -> Iterator[Sample]:
    """Both formats of the dataset: ``message``, or ``conversations`` with ``image_urls``.

    Images are found by the ends of their paths, so the zips may be unpacked anywhere under the
    media root.
    """
    form = "lmm_r1" if "message" in row else "vlm_r1"
    moved = dict(row)
    for key in ("message", "image_urls", "image"):
        if isinstance(value := row.get(key), str):
            moved[key] = _PREFIX.sub("/inspire/hdd/", value)
        elif isinstance(value, list):
            moved[key] = [_PREFIX.sub("/inspire/hdd/", v) for v in value if isinstance(v, str)]
    sample = read_row(moved, place, form)
    change = "" if moved == dict(row) else "image found by the end of its path"
    yield replace(sample, meta={**sample.meta, **noted(change)})


MM_EUREKA = Converter(
    name="mm_eureka",
    description="MM-Eureka-Dataset: school mathematics with pictures",
    source="FanqingM/MM-Eureka-Dataset on the Hugging Face Hub",
    licence="Apache-2.0 (MM-Eureka)",
    files=("dataset*.jsonl", "*.jsonl"),
    convert=_convert_mm_eureka,
)


MAX_ANSWER = 60
"""Characters; longer answers are sentences."""
_PART = re.compile(r"\(\d\)")
_DEGREES = re.compile(r"\$\{\}\^\{?\\circ\}?\s*\$")
_NUMBER = re.compile(r"\\number\{([^{}]*)\}")


def clean(answer: str) -> str:
    """One value: without the full stop, ``\\number{}`` and doubled dollars of the source.

    Raises:
        ValueError: If the answer is prose, or several answers.
    """
    text = answer.strip()
    if "\n" in text or len(_PART.findall(text)) > 1:
        raise ValueError("several answers in one row")
    if len(text) > MAX_ANSWER:
        raise ValueError("the answer is prose, which no rule can check")
    text = _DEGREES.sub("°", _NUMBER.sub(r"\1", text))
    if text.startswith("$$") and text.endswith("$$") and len(text) > 4:
        text = f"${text[2:-2].strip()}$"
    return text.removesuffix(".").strip()


# MMK12: school questions; values, letters, and answers in prose that no rule can check.
def _convert_mmk12(row: Row, place: Place) -> Iterator[Sample]:
    """The question and one value or letter."""
    answer = clean(str(row["answer"]))
    change = "" if answer == row["answer"] else "answer cleaned of its markup"
    yield assemble(
        row, place, [("user", row["question"])], images=row.get("image_path") or row.get("image"),
        answer=answer, task="choice" if answer in ("A", "B", "C", "D") else "math",
        used=("question", "answer"), untagged=True, meta=noted(change),
    )  # fmt: skip


MMK12 = Converter(
    name="mmk12",
    description="MMK12: school mathematics and sciences with pictures",
    source="FanqingM/MMK12 on the Hugging Face Hub",
    licence="Apache-2.0 (MM-Eureka)",
    files=("*k12*.json", "*.jsonl", "*.parquet"),
    convert=_convert_mmk12,
)
