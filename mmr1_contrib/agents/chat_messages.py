"""Messages in the form of OpenAI's chat API: of a sample, and as a program sends them back.

Clients change what they were told before they send it again: they leave ``null`` out, strip white
space, write the arguments of a call anew, or make a list of a text. So a message has a digest of
what it says, by which a turn is found again whose token ids are held.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmr1.environments.calls import read_calls, without_calls
from mmr1.types import ContentPart, MediaRef, Message, Sample, TextPart, ToolCall
from mmr1.vision.families.chat import without_tokens
from mmr1.vision.images import data_url

_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
_THOUGHT = re.compile(r"^\s*<think>.*?</think>", re.DOTALL)
_DATA = re.compile(r"data:image/[\w.+-]+;base64,", re.IGNORECASE)


def chat_messages(sample: Sample) -> list[dict[str, Any]]:
    """The messages of a sample as OpenAI's API takes them; pictures are data URIs."""
    messages = sample.messages[: sample.demonstrated_from]
    return [{"role": m.role, "content": _content(m)} for m in messages]


def _content(message: Message) -> Any:
    if all(isinstance(part, TextPart) for part in message.parts):
        return message.text
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else picture_part(part)
        for part in message.parts
    ]


def picture_part(media: MediaRef) -> dict[str, Any]:
    """A picture as a part of a message. Raises ValueError if it is a video, or cannot be read."""
    if media.kind != "image":
        raise ValueError(f"{media}: OpenAI's API has no videos; show frames of it as pictures")
    return {"type": "image_url", "image_url": {"url": data_url(media)}}


@dataclass(slots=True)
class Pictures:
    """The pictures of an episode, each decoded once however often it is sent.

    A picture of the sample is that of the sample, with its own options.
    """

    sample: Sample
    _by_uri: dict[str, MediaRef] = field(default_factory=dict)
    _of_sample: dict[bytes, MediaRef] | None = None

    def read(self, uri: str) -> tuple[MediaRef, str]:
        """The picture, and a digest of it. Raises ValueError unless it is in base64."""
        key = hashlib.sha256(uri.encode()).hexdigest()
        if key not in self._by_uri:
            self._by_uri[key] = self._decoded(uri)
        return self._by_uri[key], key

    def _decoded(self, uri: str) -> MediaRef:
        if (found := _DATA.match(uri)) is None:
            raise ValueError(
                f"a picture is sent as data:image/png;base64,..., not as '{uri[:60]}': the server "
                "fetches nothing"
            )
        try:
            data = base64.b64decode(uri[found.end() :], validate=True)
        except binascii.Error as error:
            raise ValueError(f"a picture is not valid base64: {error}") from error
        if self._of_sample is None:
            images = [m for m in self.sample.media if m.kind == "image"]
            self._of_sample = {hashlib.sha256(m.read()).digest(): m for m in images}
        own = self._of_sample.get(hashlib.sha256(data).digest())
        return own or MediaRef("image", data=data)


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a request.

    Attributes:
        message: Message for the chat template; the calls of an assistant's message are in its text.
        digest: Equal for two messages that say the same.
        answers: The id of the call that a tool's message answers.
        text: Text of an assistant's message without calls, to tell whether it was written on.
    """

    message: Message
    digest: bytes
    answers: str | None = None
    text: str | None = None


def read_message(raw: Any, pictures: Pictures, special: Sequence[str] = ()) -> ChatMessage:
    """A message of a request.

    Args:
        special: Tokens of the chat template; what a text has of them is taken apart.

    Raises:
        ValueError: Says what it should be.
    """
    if not isinstance(raw, Mapping) or not isinstance(raw.get("role"), str):
        raise ValueError('a message is {"role": "...", "content": ...}')
    role = _ROLES.get(raw["role"], raw["role"])
    if role not in ("system", "user", "assistant", "tool"):
        raise ValueError(f"the role '{role}' is unknown; send system, user, assistant or tool")
    read = list(_parts(raw.get("content"), pictures))
    parts, said = [part for part, _ in read], [text for _, text in read]
    calls = [_call(call) for call in raw.get("tool_calls") or ()]
    answers = raw.get("tool_call_id")
    if role == "assistant":  # clients drop the thoughts
        said = [_THOUGHT.sub("", text).strip() for text in said]
    digest = _digest(role, [text for text in said if text], calls, answers)
    text = "".join(p.text for p in parts if isinstance(p, TextPart)) if not calls else None
    written = [TextPart(_written(name, arguments)) for _, name, arguments in calls]
    message = without_tokens(Message(role, (*parts, *written)), special)
    return ChatMessage(message, digest, answers, text if role == "assistant" else None)


def _parts(content: Any, pictures: Pictures) -> Iterable[tuple[ContentPart, str]]:
    """Each part, and its text."""
    if content is None:
        return
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise ValueError("content is a text or a list of parts")
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in ("text", "input_text", "output_text", "refusal"):
            text = str(part.get("text", part.get("refusal", "")))
            yield TextPart(text), text.strip()
        elif kind == "image_url":
            url = part["image_url"]
            yield pictures.read(str(url["url"] if isinstance(url, Mapping) else url))
        else:
            raise ValueError(f"a part of type '{kind}' is not read; send text or image_url")


def _call(raw: Any) -> tuple[str, str, str]:
    """The id, the name and the arguments of a call, these as canonical JSON where they are any."""
    try:
        function = raw["function"]
        name, arguments = str(function["name"]), function.get("arguments") or "{}"
    except (TypeError, KeyError) as error:
        raise ValueError('a call is {"id", "function": {"name", "arguments"}}') from error
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        arguments = json.dumps(value, sort_keys=True, ensure_ascii=False)
    except ValueError:
        arguments = str(arguments)
    return str(raw.get("id")), name, arguments


def _written(name: str, arguments: str) -> str:
    return f'\n<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


def _digest(
    role: str, said: Sequence[str], calls: Sequence[tuple[str, str, str]], answers: str | None
) -> bytes:
    texts = "\n".join(said)  # a text, or a list with this text
    return hashlib.blake2b(repr((role, texts, calls, answers)).encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply that a program gets to its request.

    Attributes:
        message: Message in the form of the API.
        calls: Calls as a completion keeps them.
        ids: Ids of the calls, in order.
    """

    message: dict[str, Any]
    calls: tuple[ToolCall, ...]
    ids: tuple[str, ...]


def reply(text: str, with_tools: bool, seed: int) -> Reply:
    """The message of a turn; where the request has tools, its calls are taken out of the text.

    A call that cannot be read stays in the text.

    Args:
        seed: Seed of the turn, from which the ids of its calls are made.
    """
    calls = read_calls(text) if with_tools else []
    if not calls or any(call.error for call in calls):
        return Reply({"role": "assistant", "content": text}, (), ())
    ids = tuple(f"call_{seed:012x}{number}" for number in range(len(calls)))
    message = {
        "role": "assistant",
        "content": without_calls(text).strip() or None,
        "tool_calls": [
            {
                "id": id_,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments, ensure_ascii=False),
                },
            }
            for id_, call in zip(ids, calls, strict=True)
        ],
    }
    return Reply(message, tuple(calls), ids)
