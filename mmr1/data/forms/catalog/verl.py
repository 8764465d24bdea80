"""verl: a chat ``prompt`` and its ``reward_model``."""

from __future__ import annotations

from collections.abc import Mapping

from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.chat import read_chat
from mmr1.data.forms.form import Form, Place, Row
from mmr1.data.record import parse_json
from mmr1.types import Sample


def read(row: Row, place: Place) -> Sample:
    """The gold answer is ``reward_model.ground_truth``, the task ``ability``."""
    chat = read_chat(row["prompt"])
    model = row["reward_model"]
    if isinstance(model, str):  # as a cell of a table holds it
        model = parse_json(model)
    if not isinstance(model, Mapping) or "ground_truth" not in model:
        raise ValueError(f"reward_model {model!r:.60} is no mapping with a 'ground_truth'")
    return assemble(
        row, place, chat.turns, images=chat.images(row.get("images")),
        videos=chat.videos(row.get("videos")), answer=model["ground_truth"],
        task=row.get("ability"), used=("prompt", "reward_model", "ability"),
    )  # fmt: skip


FORM = Form(
    name="verl",
    written_by="verl",
    keys=("prompt", "reward_model"),
    read=read,
    example={
        "prompt": [{"role": "user", "content": "<image>Find x."}],
        "images": ["a.png"],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "5"},
    },
    variants={
        "verl, a part that holds its picture": {
            "prompt": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "image": "a.png"},
                        {"type": "text", "text": "x?"},
                    ],
                }
            ],
            "reward_model": {"style": "rule", "ground_truth": "5"},
        }
    },
)
