"""TRL: a ``prompt`` (chat or text) with ``image`` or ``images``, and an answer in some column."""

from __future__ import annotations

from mmr1.data.forms.answers import inside_answer
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.chat import read_chat
from mmr1.data.forms.columns import first_of, images_of, videos_of
from mmr1.data.forms.form import Form, Place, Row
from mmr1.types import Sample

_ANSWERS = ("answer", "solution", "ground_truth")


def read(row: Row, place: Place) -> Sample:
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
        answer=inside_answer(first_of(row, _ANSWERS)), task=row.get("task"),
        used=("prompt", "completion", *_ANSWERS, "task"), untagged=True,
    )  # fmt: skip


FORM = Form(
    name="trl",
    written_by="TRL",
    keys=("prompt",),
    read=read,
    example={
        "prompt": [{"role": "user", "content": "Find x."}],
        "image": "a.png",
        "solution": "<answer>5</answer>",
    },
    variants={"TRL, a prompt that is a text": {"prompt": "What is 2 + 3?", "answer": "5"}},
)
