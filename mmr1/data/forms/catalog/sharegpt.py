"""Chat ``messages`` with media in ``images`` and ``videos``: LLaMA-Factory, ms-swift, OpenAI."""

from __future__ import annotations

from mmr1.data.forms.answers import inside_answer
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.chat import read_chat, with_system
from mmr1.data.forms.columns import first_of, images_of, videos_of
from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.forms.objects import place_objects
from mmr1.types import Sample

_ANSWERS = ("answer", "solution")


def read(row: Row, place: Place) -> Sample:
    """A conversation. ``solution`` or ``answer`` is its gold; ms-swift's boxes are too."""
    chat = read_chat(row["messages"])
    turns = with_system(chat.turns, row.get("system"))
    if any("<audio>" in text for _, text in turns):
        raise ValueError("<audio>: the model cannot hear; drop the row")
    answer = inside_answer(first_of(row, _ANSWERS))
    objects = place_objects(turns, row.get("objects"), needs_gold=answer is None)
    used = ("messages", "system", *_ANSWERS) + (("objects",) if objects.used else ())
    sample = assemble(
        row, place, objects.turns, images=chat.images(images_of(row)),
        videos=chat.videos(videos_of(row)), answer=answer,
        task=row.get("task") or ("math" if answer is not None else None), used=(*used, "task"),
    )  # fmt: skip
    return objects.ground(sample)


FORM = Form(
    name="sharegpt",
    written_by="LLaMA-Factory, ms-swift, OpenAI chat",
    keys=("messages",),
    read=read,
    example={
        "messages": [
            {"role": "user", "content": "<image>Who?"},
            {"role": "assistant", "content": "A man."},
        ],
        "images": ["a.png"],
    },
    variants={
        "OpenAI, a picture by its address (`data:` too)": {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": "a.png"}},
                        {"type": "text", "text": "Who?"},
                    ],
                },
                {"role": "assistant", "content": "A man."},
            ]
        },
        "Qwen, a video with its options": {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "video", "video": "clip.mp4", "fps": 2.0},
                        {"type": "text", "text": "Who?"},
                    ],
                }
            ],
            "answer": "5",
        },
        "ms-swift, boxes that are the reply": {
            "messages": [
                {"role": "user", "content": "<image>Find <ref-object>."},
                {"role": "assistant", "content": "<bbox>"},
            ],
            "images": ["a.png"],
            "objects": {"ref": ["the cup"], "bbox": [[3, 6, 33, 28]]},
        },
    },
)
