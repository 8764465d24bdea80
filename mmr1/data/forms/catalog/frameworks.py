"""Rows of training frameworks: EasyR1, verl, OpenRLHF, TRL, LLaMA-Factory (ShareGPT), ms-swift."""

from __future__ import annotations

from collections.abc import Mapping

from mmr1.data.forms.assemble import assemble, assemble_question, inside_answer
from mmr1.data.forms.chat import place_objects, read_chat, with_system
from mmr1.data.forms.columns import first_of, images_of, videos_of
from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.record import parse_json
from mmr1.types import Sample


# EasyR1: a problem with tags, its answer, ``images`` or ``videos``; options and a system prompt,
# if any.
def _read_easyr1(row: Row, place: Place) -> Sample:
    """Media without tags go before the problem."""
    return assemble_question(
        row, place, row["problem"], row["answer"], images=images_of(row), videos=videos_of(row),
        task="math", used=("problem", "answer", "system"), system=row.get("system"),
    )  # fmt: skip


EASYR1 = Form(
    name="easyr1",
    written_by="EasyR1, EasyVideoR1",
    keys=("problem", "answer"),
    read=_read_easyr1,
)


# verl: a chat ``prompt`` and its ``reward_model``.
def _read_verl(row: Row, place: Place) -> Sample:
    """The gold answer is ``reward_model.ground_truth``, the task ``ability``."""
    chat = read_chat(row["prompt"])
    model = row["reward_model"]
    if isinstance(model, str):  # as a cell of a table holds it
        model = parse_json(model)
    if not isinstance(model, Mapping) or "ground_truth" not in model:
        raise ValueError(f"reward_model {model!r:.60} is not a mapping with a 'ground_truth'")
    return assemble(
        row, place, chat.turns, images=chat.images(row.get("images")),
        videos=chat.videos(row.get("videos")),
        answer=model["ground_truth"],
        task=row.get("ability"), used=("prompt", "reward_model", "ability"),
    )  # fmt: skip


VERL = Form(
    name="verl",
    written_by="verl",
    keys=("prompt", "reward_model"),
    read=_read_verl,
)


# OpenRLHF: a ``prompt``, as text or chat, and its ``label``.
def _read_openrlhf(row: Row, place: Place) -> Sample:
    """The label is the gold answer."""
    chat = read_chat(row["prompt"])
    return assemble(
        row, place, chat.turns, images=chat.images(row.get("images")), answer=row.get("label"),
        task="math", used=("prompt", "label"), untagged=True,
    )  # fmt: skip


OPENRLHF = Form(
    name="openrlhf",
    written_by="OpenRLHF",
    keys=("prompt", "label"),
    read=_read_openrlhf,
)


_ANSWERS_TRL = ("answer", "solution", "ground_truth")


# TRL: a ``prompt`` (chat or text) with ``image`` or ``images``, and an answer in some column.
def _read_trl(row: Row, place: Place) -> Sample:
    """A ``completion`` becomes the demonstration."""
    chat = read_chat(row["prompt"])
    turns = chat.turns
    completion = row.get("completion")
    if isinstance(completion, str) and completion:
        turns = [*turns, ("assistant", completion)]
    elif completion:
        turns = turns + read_chat(completion).turns
    return assemble(
        row, place, turns, images=chat.images(images_of(row)), videos=chat.videos(videos_of(row)),
        answer=inside_answer(first_of(row, _ANSWERS_TRL)),
        task=row.get("task"), used=("prompt", "completion", *_ANSWERS_TRL, "task"), untagged=True,
    )  # fmt: skip


TRL = Form(
    name="trl",
    written_by="TRL",
    keys=("prompt",),
    read=_read_trl,
)


_ANSWERS_SHAREGPT = ("answer", "solution")


# Chat ``messages`` with media in ``images`` and ``videos``: LLaMA-Factory, ms-swift, OpenAI.
def _read_sharegpt(row: Row, place: Place) -> Sample:
    """A conversation. ``solution`` or ``answer`` is its gold; ms-swift's boxes are too."""
    chat = read_chat(row["messages"])
    turns = with_system(chat.turns, row.get("system"))
    answer = inside_answer(first_of(row, _ANSWERS_SHAREGPT))
    objects = place_objects(turns, row.get("objects"), needs_gold=answer is None)
    used = ("messages", "system", *_ANSWERS_SHAREGPT) + (("objects",) if objects.used else ())
    sample = assemble(
        row, place, objects.turns, images=chat.images(images_of(row)),
        videos=chat.videos(videos_of(row)), answer=answer,
        task=row.get("task") or ("math" if answer is not None else None), used=(*used, "task"),
    )  # fmt: skip
    return objects.ground(sample)


SHAREGPT = Form(
    name="sharegpt",
    written_by="LLaMA-Factory, ms-swift, OpenAI chat",
    keys=("messages",),
    read=_read_sharegpt,
)


# ms-swift's older rows: a ``query`` with its ``response``, and earlier turns in ``history``.
def _read_swift(row: Row, place: Place) -> Sample:
    """Rows of the chat form, with its messages in these columns."""
    pairs = [*(row.get("history") or []), (row["query"], first_of(row, ("response",)))]
    messages = [
        {"role": role, "content": text}
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair, strict=True)
        if text is not None
    ]
    rest = {k: v for k, v in row.items() if k not in ("query", "response", "history")}
    return _read_sharegpt({**rest, "messages": messages}, place)


SWIFT = Form(
    name="swift",
    written_by="ms-swift, query and response",
    keys=("query",),
    read=_read_swift,
    fits=lambda row: row.get("response") is not None or row.get("solution") is not None,
)
