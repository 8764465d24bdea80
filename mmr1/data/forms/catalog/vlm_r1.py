"""VLM-R1, LLaVA, R1-Onevision: ``conversations`` of turns with ``from`` and ``value``."""

from __future__ import annotations

from typing import Any

from mmr1.data.forms.answers import ANSWER, inside_answer
from mmr1.data.forms.assemble import assemble
from mmr1.data.forms.boxes import gold_boxes, grounded
from mmr1.data.forms.chat import read_chat, with_system
from mmr1.data.forms.columns import first_of, videos_of
from mmr1.data.forms.form import Form, Place, Row, Turns
from mmr1.rewards.plugins.columns import ROW
from mmr1.types import Sample

_SHORT = 200
"""Characters; a longer reply without the tag is a demonstration and holds no gold answer."""


def read(row: Row, place: Place) -> Sample:
    """The reply is the gold answer if it is short or tagged. A reply of boxes is nothing else."""
    chat = read_chat(row["conversations"])
    turns = with_system(chat.turns, row.get("system"))
    reply = turns[-1][1] if turns and turns[-1][0] == "assistant" else ""
    answer = row.get("answer", _gold(reply))
    images = chat.images(first_of(row, ("image_urls", "image", "images")))
    task = None if answer is None else "math"

    def sample(turns: Turns, answer: Any) -> Sample:
        return assemble(
            row, place, turns, images=images, videos=chat.videos(videos_of(row)), answer=answer,
            task=task, used=("conversations", "answer", "system"), untagged=True,
            meta={ROW: _as_loaded(turns, reply)} if reply and task else None,
        )  # fmt: skip

    if images and answer is not None:
        question = "".join(text for role, text in turns if role == "user")
        if (boxes := gold_boxes(row, answer, question)) is not None:
            return grounded(sample(turns[:-1] if reply else turns, None), boxes)
    return sample(turns, answer)


def _as_loaded(turns: Turns, reply: str) -> dict[str, str]:
    """The columns that VLM-R1's own loader makes of a row, which its reward functions read."""
    text = reply.replace("<answer>", "").replace("</answer>", "").strip()
    problem = next((text for role, text in turns if role == "user"), "")
    return {
        "problem": problem.replace("<image>", ""),
        "solution": f"<answer> {text} </answer>",
        "accu_reward_method": "default",
    }


def _gold(reply: str) -> str | None:
    if ANSWER.search(reply):
        return str(inside_answer(reply))
    return reply if 0 < len(reply) <= _SHORT else None


FORM = Form(
    name="vlm_r1",
    written_by="VLM-R1, LLaVA, R1-Onevision",
    keys=("conversations",),
    read=read,
    example={
        "image": "a.png",
        "conversations": [
            {"from": "human", "value": "<image>Where is the red cup?"},
            {"from": "gpt", "value": "[3, 6, 33, 28]"},
        ],
    },
)
