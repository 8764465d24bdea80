"""Conversations whose answers do not depend on what the policy says, for the parity check.

A policy that knows nothing calls no tool. So between its two turns each of these has a text and, if
the model sees pictures, a picture.
"""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from mmr1.environments.environment import Action, Answer, Ending, Opening
from mmr1.environments.pictures import png
from mmr1.types import MediaRef, Message, Sample, TextPart

_SIDE = 84  # pixels


class TwoTurns:
    """An ``Environment`` that answers every first turn alike."""

    tools: Sequence[str] = ()

    def __init__(self, message: Message) -> None:
        self._message = message

    def episode(self, sample: Sample) -> _Episode:
        return _Episode(self._message)

    def close(self) -> None:
        """Do nothing: it does not start processes."""


class _Episode:
    def __init__(self, message: Message) -> None:
        self._messages: tuple[Message, ...] = (message,)

    def begin(self, prompt: str) -> Opening:
        return Opening()

    def step(self, action: Action) -> Answer:
        messages, self._messages = self._messages, ()
        return Answer(messages)

    def end(self) -> Ending:
        return Ending()


def two_turns(shows_picture: bool) -> TwoTurns:
    """Conversations in which the policy is asked to look again, perhaps at a picture."""
    parts = (TextPart("Look again."), *((picture(),) if shows_picture else ()))
    return TwoTurns(Message("tool", parts))


def picture(shift: int = 0) -> MediaRef:
    """A picture without two equal regions; another one for each ``shift`` of its colours."""
    image = Image.new("RGB", (_SIDE, _SIDE))
    image.putdata(
        [
            ((3 * x + shift) % 256, (3 * y + shift) % 256, (x * y + shift) % 256)
            for y in range(_SIDE)
            for x in range(_SIDE)
        ]
    )
    return MediaRef("image", data=png(image))
