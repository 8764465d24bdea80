"""Row formats of other projects. Each is recognised by its keys and read into a ``Sample``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmr1.boxes import check_inside, pixels
from mmr1.data.media_values import media_refs
from mmr1.data.placeholders import fill, prepend
from mmr1.data.record import decode, parse_json
from mmr1.registry import suggest
from mmr1.types import MediaRef, Message, Sample, TextPart

Row = Mapping[str, Any]
Turns = list[tuple[str, str]]

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_ROLES = {"human": "user", "gpt": "assistant", "observation": "user", "model": "assistant"}


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a row: the root of its media paths, its dataset and its index there."""

    root: Path
    source: str
    index: int


@dataclass(frozen=True, slots=True)
class Form:
    """One row format.

    Attributes:
        keys: A row of this format has all of them.
        read: ``(row, place) -> sample``; raises ValueError for a row that cannot be used.
    """

    keys: tuple[str, ...]
    read: Callable[[Row, Place], Sample]


def recognise(row: Row) -> str:
    """The name of a row's format.

    Raises:
        ValueError: No format has these keys.
    """
    for name, form in FORMS.items():
        if all(row.get(key) is not None for key in form.keys):
            return name
    raise ValueError(
        f"a row with the keys {', '.join(sorted(row))} has none of the known formats "
        f"({', '.join(FORMS)}); convert it with mmr1-data, or set data.format"
    )


def check_form(form: str) -> None:
    """Check ``data.format``. Raises ValueError if no format has this name."""
    if form not in FORMS:
        raise ValueError(f"unknown data.format '{form}'{suggest(form, FORMS)}; {', '.join(FORMS)}")


def read_row(row: Row, place: Place, form: str | None = None) -> Sample:
    """A row as a sample. Its format is recognised by its keys unless ``form`` names it.

    Raises:
        ValueError: The row cannot be used.
    """
    if form is not None:
        check_form(form)
    try:
        return FORMS[form or recognise(row)].read(row, place)
    except KeyError as error:
        raise ValueError(f"the key {error} is missing") from None


def assemble(
    row: Row,
    place: Place,
    turns: Turns,
    *,
    images: Any = None,
    videos: Any = None,
    answer: Any = None,
    task: str | None = None,
    used: Sequence[str] = (),
    untagged: bool = False,
    meta: Mapping[str, Any] | None = None,
) -> Sample:
    """Build a sample from the values of a row.

    Args:
        row: Its unused columns go to ``meta``.
        place: For the id and the media root.
        turns: ``(role, text with tags)`` of each message.
        images: The value of the image column, in the order of the tags.
        videos: The value of the video column.
        answer: Gold answer.
        task: Task type.
        used: Columns that do not go to ``meta``.
        untagged: Put the media before the question if the text has no tags.
        meta: More entries of ``meta``.
    """
    image_refs = media_refs("image", images, place.root)
    video_refs = media_refs("video", videos, place.root)
    if untagged and (image_refs or video_refs):
        turns = prepend(turns, len(image_refs), len(video_refs))
    return Sample(
        id=f"{place.source}-{place.index:06d}",
        messages=fill(turns, image_refs, video_refs),
        answer=answer,
        task=task,
        source=place.source,
        meta={**other_columns(row, used), **(meta or {})},
    )


def other_columns(row: Row, used: Sequence[str]) -> dict[str, Any]:
    """The non-empty columns that JSON can represent; ``id`` becomes ``source_id``."""
    columns: dict[str, Any] = {}
    for name, value in row.items():
        if name in used or name in ("image", "images", "video", "videos", "image_path"):
            continue
        if value is None or value == [] or value == "":
            continue
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            continue  # bytes, arrays and NaN have no place in a record
        columns["source_id" if name == "id" else name] = value
    return columns


def inside_answer(text: Any) -> Any:
    """The content of the last ``<answer>`` tag; a value without a tag is returned unchanged."""
    contents = _ANSWER.findall(text) if isinstance(text, str) else []
    return contents[-1].strip() if contents else text


def tagged_answer(text: Any) -> str:
    """The content of the last ``<answer>`` tag. Raises ValueError when there is none."""
    if not isinstance(text, str) or not _ANSWER.search(text):
        raise ValueError(f"the solution {str(text)[:60]!r} has no <answer> tag")
    return str(inside_answer(text))


def turns_of(messages: Any) -> Turns:
    """Chat messages, with a string or a list as content, as ``(role, text with tags)``."""
    if isinstance(messages, str):
        try:
            messages = json.loads(messages)
        except json.JSONDecodeError as error:
            raise ValueError(f"the messages are a text that is not JSON: {error}") from None
    turns = []
    for message in messages:
        role = message.get("role", message.get("from"))
        content = message.get("content", message.get("value"))
        if not isinstance(role, str) or content is None:
            raise ValueError("a message has no role or no content")
        turns.append((_ROLES.get(role, role), _text_with_tags(content)))
    return turns


def _text_with_tags(content: Any) -> str:
    if isinstance(content, str):
        return content
    pieces = []
    for item in content:
        kind = item.get("type")
        if kind not in ("text", "image", "video", "image_url"):
            raise ValueError(f"content of type {kind!r}; it can be text, image, image_url or video")
        tag = "<video>" if kind == "video" else "<image>"
        pieces.append(str(item.get("text") or "") if kind == "text" else tag)
    return "".join(pieces)


def part_media(messages: Any) -> list[Any]:
    """The image values inside contents that are lists, in order."""
    messages = json.loads(messages) if isinstance(messages, str) else messages
    return [
        item.get("image") or (item.get("image_url") or {}).get("url")
        for message in messages
        if isinstance(message["content"], list)
        for item in message["content"]
        if item.get("type") in ("image", "image_url")
    ]


def _canonical(row: Row, place: Place) -> Sample:
    return decode(dict(row), place.root)


def _canonical_parquet(row: Row, place: Place) -> Sample:
    return decode(parse_json(row["record"]), place.root)


def _easyr1(row: Row, place: Place) -> Sample:
    images = row.get("images") if row.get("images") is not None else row.get("image")
    videos = row.get("videos") if row.get("videos") is not None else row.get("video")
    turns = [("user", row["problem"])]
    return assemble(
        row, place, turns, images=images, videos=videos, answer=row["answer"], task="math",
        used=("problem", "answer"), untagged="images" not in row and "videos" not in row,
    )  # fmt: skip


def _verl(row: Row, place: Place) -> Sample:
    return assemble(
        row, place, turns_of(row["prompt"]), images=row.get("images"), videos=row.get("videos"),
        answer=row["reward_model"]["ground_truth"], task=row.get("ability"),
        used=("prompt", "reward_model", "ability"),
    )  # fmt: skip


def _trl(row: Row, place: Place) -> Sample:
    images = row.get("images") if row.get("images") is not None else row.get("image")
    answer = next((row[k] for k in ("answer", "solution", "ground_truth") if k in row), None)
    turns = turns_of(row["prompt"])
    if isinstance(row.get("completion"), list):
        turns += turns_of(row["completion"])
    return assemble(
        row, place, turns, images=images, answer=inside_answer(answer), task=row.get("task"),
        used=("prompt", "completion", "answer", "solution", "ground_truth", "task"), untagged=True,
    )  # fmt: skip


def _openrlhf(row: Row, place: Place) -> Sample:
    prompt = row["prompt"]
    turns = turns_of(prompt) if prompt.lstrip().startswith("[{") else [("user", prompt)]
    return assemble(
        row, place, turns, images=row.get("images"), answer=row.get("label"), task="math",
        used=("prompt", "label"), untagged=True,
    )  # fmt: skip


def _lmm_r1(row: Row, place: Place) -> Sample:
    images = row.get("image_urls") or part_media(row["message"])
    return assemble(
        row, place, turns_of(row["message"]), images=images, answer=row["answer"], task="math",
        used=("message", "answer", "question", "image_urls"),
    )  # fmt: skip


def _r1_v(row: Row, place: Place) -> Sample:
    turns = [("user", row["problem"])]
    return assemble(
        row, place, turns, images=row.get("image"), videos=row.get("video"),
        answer=tagged_answer(row["solution"]), task="math", used=("problem", "solution"),
        untagged=True,
    )  # fmt: skip


def _r1_v_eval(row: Row, place: Place) -> Sample:
    answer = row["ground_truth"]
    return assemble(
        row, place, [("user", row["question"])], images=row["image_path"], answer=answer,
        task="count" if isinstance(answer, int) else "math", untagged=True,
        used=("question", "ground_truth"),
    )  # fmt: skip


def _vlm_r1(row: Row, place: Place) -> Sample:
    turns = turns_of(row["conversations"])
    images = row.get("image_urls") or row.get("image") or row.get("images")
    reply = turns[-1][1] if turns and turns[-1][0] == "assistant" else ""
    # A long reply without the tag is a demonstration and holds no gold answer.
    short = reply if 0 < len(reply) <= 200 else None
    answer = row.get("answer", inside_answer(reply) if _ANSWER.search(reply) else short)
    return assemble(
        row, place, turns, images=images, videos=row.get("video"), answer=answer,
        task=None if answer is None else "math",
        used=("conversations", "answer", "image_urls"), untagged=True,
    )  # fmt: skip


def _rec(row: Row, place: Place) -> Sample:
    """VLM-R1 referring expressions: ``solution`` is xyxy in pixels of the original image."""
    width, height = int(row["width"]), int(row["height"])
    box = check_inside(row["solution"], pixels(width, height))
    sample = assemble(
        row, place, [("user", row["problem"])], images=row["image"], answer=[list(box)],
        task="iou", untagged=True,
        used=("problem", "solution", "width", "height", "bbox_list", "normalized_solution"),
    )  # fmt: skip
    return with_size(sample, (width, height))


def with_size(sample: Sample, size: tuple[int, int]) -> Sample:
    """The sample with the original size stated at its one medium."""

    def sized(message: Message) -> Message:
        return Message(
            message.role,
            tuple(
                part
                if isinstance(part, TextPart)
                else MediaRef(part.kind, part.path, part.data, size, part.options)
                for part in message.parts
            ),
        )

    messages = tuple(sized(message) for message in sample.messages)
    return Sample(sample.id, messages, sample.answer, sample.task, sample.source, sample.meta)


VIDEO_R1_TASKS = {
    "multiple choice": "choice",
    "numerical": "numeric",
    "ocr": "ocr",
    "free-form": "rouge",
    "open-ended": "rouge",
    "regression": "regression",
    "temporal grounding": "tiou",
    "spatial-temporal grounding": "tiou",
}


def _video_r1(row: Row, place: Place) -> Sample:
    kind = str(row.get("problem_type", "")).lower()
    if kind not in VIDEO_R1_TASKS:
        raise ValueError(f"problem_type '{kind}' has no verifiable answer of one kind")
    question = with_options(row["problem"], row.get("options"))
    turns = [("user", question)]
    if row.get("process"):
        turns.append(("assistant", f"{row['process']}{row['solution']}"))
    media = {"images" if row["data_type"] == "image" else "videos": row["path"]}
    if row.get("image_path"):  # a question about a video and an image
        media["images"] = row["image_path"]
        turns[0] = ("user", f"<video>{question}" if "<image" in question else question)
    answer: Any = tagged_answer(row["solution"])
    extra = {}
    if VIDEO_R1_TASKS[kind] == "tiou":  # {"time": [s, e], "boxes": {second: box}}
        grounding = json.loads(answer)
        answer, extra = grounding["time"], {"boxes": grounding.get("boxes")}
    return assemble(
        row, place, turns, answer=answer, task=VIDEO_R1_TASKS[kind], meta=extra,
        used=("problem", "solution", "process", "path", "problem_type", "data_type"),
        untagged=True, **media,
    )  # fmt: skip


def with_options(question: str, options: Sequence[str] | None) -> str:
    """The question and its options, each on a line with its letter.

    >>> print(with_options("Which?", ["red", "(B) blue"]))
    Which?
    A. red
    B. blue
    """
    if not options:
        return question
    plain = [re.sub(r"^\(?[A-Z][.):]\)?\s*", "", str(option).strip()) for option in options]
    lines = [f"{letter}. {text}" for letter, text in zip(LETTERS, plain, strict=False)]
    return "\n".join([question, *lines])


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _sharegpt(row: Row, place: Place) -> Sample:
    return assemble(
        row, place, turns_of(row["messages"]), images=row.get("images"), videos=row.get("videos"),
        answer=row.get("answer"), task=row.get("task"), used=("messages", "answer", "task"),
    )  # fmt: skip


# A row has the first format whose keys it has, so specific formats come before general ones.
FORMS: dict[str, Form] = {
    "canonical_parquet": Form(("id", "record"), _canonical_parquet),
    "canonical": Form(("version",), _canonical),
    "lmm_r1": Form(("message", "answer"), _lmm_r1),
    "verl": Form(("prompt", "reward_model"), _verl),
    "openrlhf": Form(("prompt", "label"), _openrlhf),
    "trl": Form(("prompt",), _trl),
    "sharegpt": Form(("messages",), _sharegpt),
    "vlm_r1": Form(("conversations",), _vlm_r1),
    "video_r1": Form(("problem", "solution", "path", "data_type"), _video_r1),
    "rec": Form(("problem", "solution", "image", "width", "height"), _rec),
    "r1_v": Form(("problem", "solution"), _r1_v),
    "r1_v_eval": Form(("image_path", "question", "ground_truth"), _r1_v_eval),
    "easyr1": Form(("problem", "answer"), _easyr1),
}
