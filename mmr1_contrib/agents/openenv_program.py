"""An environment of OpenEnv as an agent program, by the protocol of its server's WebSocket.

The package ``openenv`` is not needed: it pins versions that do not go with those of mmr1, and the
protocol is JSON.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from PIL import Image

from mmr1.environments.pictures import png
from mmr1.types import MediaRef, Sample
from mmr1_contrib.agents.chat_messages import picture_part
from mmr1_contrib.agents.episodes import Part, play, text_part

_LARGEST = 100 << 20
"""Bytes of one message, as OpenEnv's own client has it."""


async def run(
    client: Any,
    sample: Sample,
    *,
    url: str,
    action: str | None = None,
    text: str | None = None,
    picture: str | None = None,
    max_steps: int = 16,
    bad_action: float = 0.0,
) -> float:
    """Act until the environment ends; the sum of its rewards.

    The policy reads the messages of the sample with the first observation behind them, and then
    an observation after each action. The sample's column ``reset`` has the arguments of reset.

    Args:
        url: Address of the server: ``http://host:port``, or with ``https``.
        action: The field of an action that a turn's text fills. None: the turn is the whole action
            in JSON.
        text: The field of an observation that the policy reads. None: all but ``metadata`` in
            JSON.
        picture: The field of an observation that has its picture, in base64 or as rows of pixels.
        max_steps: Turns at most.
        bad_action: Reward of a turn that the server takes for no action; nothing then changes.

    Raises:
        RuntimeError: The server refuses the session, or the environment fails.
    """
    from websockets.asyncio.client import connect
    from websockets.exceptions import ConnectionClosed

    async with connect(
        f"{url.rstrip('/').replace('http', 'ws', 1)}/ws", max_size=_LARGEST, proxy=None
    ) as socket:

        async def ask(kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
            with suppress(ConnectionClosed):  # a session that was refused: the answer says why
                await socket.send(json.dumps({"type": kind, "data": data}))
            answer: dict[str, Any] = json.loads(await socket.recv())
            return answer

        async def step(turn: str) -> tuple[list[Part] | None, float]:
            try:
                written = json.loads(turn) if action is None else {action: turn.strip()}
            except ValueError as error:
                return [text_part(f"Error: not an action in JSON: {error}")], bad_action
            answer = await ask("step", written)
            if answer["data"].get("code") == "VALIDATION_ERROR":
                reasons = answer["data"].get("errors") or [{"msg": answer["data"]["message"]}]
                told = "; ".join(str(reason["msg"]) for reason in reasons)
                return [text_part(f"Error: {told}")], bad_action
            seen = _observed(answer)
            shown = None if seen["done"] else _parts(seen["observation"], text, picture)
            return shown, float(seen["reward"] or 0.0)

        first = _observed(await ask("reset", sample.meta.get("reset", {})))
        shown = _parts(first["observation"], text, picture)
        total = await play(client, sample, shown, step, max_steps)
        await socket.send(json.dumps({"type": "close"}))
        return total


def _observed(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    data: Mapping[str, Any] = answer["data"]
    if answer["type"] != "observation":
        raise RuntimeError(f"the environment's server says {data.get('code')}: {data['message']}")
    return data


def _parts(observation: Mapping[str, Any], text: str | None, picture: str | None) -> list[Part]:
    rest = {k: value for k, value in observation.items() if k not in (picture, "metadata")}
    said = json.dumps(rest, ensure_ascii=False) if text is None else str(observation[text])
    parts = [text_part(said)] if said else []
    if picture is not None and (shown := observation[picture]) is not None:
        parts.append(picture_part(MediaRef("image", data=_image(shown))))
    return parts


def _image(shown: Any) -> bytes:
    if isinstance(shown, str):
        return base64.b64decode(shown.rpartition(",")[2])
    return png(Image.fromarray(np.asarray(shown, np.uint8)))
