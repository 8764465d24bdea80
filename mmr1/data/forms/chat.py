"""Chat messages as other projects write them: roles and texts with tags, and the media in them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from mmr1.boxes import Space, pixels, thousandths, unit
from mmr1.data.forms.boxes import grounded
from mmr1.data.forms.form import Turns
from mmr1.data.placeholders import tags_of
from mmr1.types import MediaKind, Sample
from mmr1.vision.images import image_size

_ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "function_call": "assistant",  # LLaMA-Factory
    "tool_call": "assistant",  # ms-swift
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
}
_CALLS = ("function_call", "tool_call")
_KINDS: Mapping[str, MediaKind] = {
    **{"image": "image", "image_url": "image", "video": "video", "video_url": "video"},
}


@dataclass(slots=True)
class Chat:
    """A conversation.

    Attributes:
        turns: ``(role, text with tags)`` of each message.
        media: Value that the part of each tag of a kind holds, in order; None for a tag whose
            medium is in a column of the row.
    """

    turns: Turns = field(default_factory=list)
    media: dict[str, list[Any]] = field(
        default_factory=lambda: {k: [] for k in get_args(MediaKind)}
    )

    def images(self, column: Any) -> Any:
        """The images of the conversation, given the image column of its row."""
        return self._all("image", column)

    def videos(self, column: Any) -> Any:
        """The videos of the conversation, given the video column of its row."""
        return self._all("video", column)

    def _all(self, kind: str, column: Any) -> Any:
        inside = self.media[kind]
        if all(value is None for value in inside):
            return column
        listed = _listed(column)
        bare = sum(value is None for value in inside)
        if bare == 0 and len(listed) in (0, len(inside)):  # the column lists the same media again
            return inside
        if bare != len(listed):
            raise ValueError(
                f"the messages hold {len(inside) - bare} {kind}(s) and {bare} <{kind}> "
                f"placeholder(s), and the row lists {len(listed)} {kind}(s); list one for each "
                "placeholder"
            )
        rest = iter(listed)
        return [next(rest) if value is None else value for value in inside]


def read_chat(messages: Any) -> Chat:
    """A conversation: a list of messages, the same as JSON text, or one question as text.

    The content of a message is a text or a list of parts, as OpenAI, Qwen, TRL and LLaMA-Factory
    write them: ``{"type": "text", "text": …}``, ``{"type": "image"}``, ``{"type": "image", "image":
    …}``, ``{"type": "image_url", "image_url": {"url": …}}`` and the same for videos.

    Calls of tools become ``<tool_call>`` JSON in the text of the assistant: messages of the role
    ``function_call`` (LLaMA-Factory) or ``tool_call`` (ms-swift), and ``tool_calls`` (OpenAI).

    Raises:
        ValueError: A message has another role, or content that is not text or media; or a
            call is none.
    """
    chat = Chat()
    for message in _messages(messages):
        role = message.get("role", message.get("from"))
        content = message.get("content", message.get("value"))
        calls = [_called(call) for call in message.get("tool_calls") or ()]
        if calls and content is None:
            content = ""
        if not isinstance(role, str) or content is None:
            raise ValueError("a message has no role or no content")
        if role not in _ROLES:
            raise ValueError(f"unknown role '{role}'; known are {', '.join(_ROLES)}")
        text = "".join(_texts(content, chat.media))
        if role in _CALLS:
            text = _tagged(text)
        chat.turns.append((_ROLES[role], "\n".join(filter(None, [text, *calls]))))
    return chat


def _called(call: Any) -> str:
    """A call in OpenAI's form: a name and its arguments, as JSON text or as an object."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError("an entry of 'tool_calls' has no function with a name")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = _json(arguments)
    return _tagged(_text_of({"name": function["name"], "arguments": arguments}))


def _tagged(call: str) -> str:
    """A call's JSON in the form of Qwen's chat templates; one that is tagged already stays.

    A list of calls is one after another.
    """
    if call.lstrip().startswith("<tool_call>"):
        return call
    value = _json(call)
    calls = value if isinstance(value, list) else [value]
    if not calls or not all(isinstance(one, Mapping) for one in calls):
        raise ValueError("a tool call is not a JSON object")
    texts = map(_text_of, calls) if isinstance(value, list) else [call.strip()]
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)


def _text_of(call: Mapping[str, Any]) -> str:
    return json.dumps(call, ensure_ascii=False)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"a tool call is not JSON: {error}") from None


def with_system(turns: Turns, system: Any) -> Turns:
    """The turns after the system prompt that stands in a separate column.

    Raises:
        ValueError: The conversation begins with another system prompt.
    """
    if not system:
        return turns
    if turns and turns[0][0] == "system":
        if turns[0][1] != system:
            raise ValueError("two system prompts: one in 'system' and another in the messages")
        return turns
    return [("system", str(system)), *turns]


def _messages(messages: Any) -> list[Mapping[str, Any]]:
    if isinstance(messages, str):
        if not messages.lstrip().startswith(("[{", "[ {", "[\n")):
            return [{"role": "user", "content": messages}]
        try:
            messages = json.loads(messages)
        except json.JSONDecodeError as error:
            raise ValueError(f"the messages are a text that is not JSON: {error}") from None
    if not isinstance(messages, list) or not all(isinstance(m, Mapping) for m in messages):
        raise ValueError("the messages are not a list of {role, content}")
    return messages


def _texts(content: Any, media: dict[str, list[Any]]) -> Iterator[str]:
    """The pieces of a message's text; media of its tags are added to ``media``."""
    for part in [content] if isinstance(content, str | Mapping) else content:
        if isinstance(part, str):
            yield _counted(part, media)
            continue
        kind = str(part.get("type"))
        if kind == "text":
            yield _counted(_text(part), media)
        elif kind in _KINDS:
            media[_KINDS[kind]].append(_medium(part, kind))
            yield f"<{_KINDS[kind]}>"
        else:
            raise ValueError(f"unknown content type {kind!r}; known are text, {', '.join(_KINDS)}")


def _text(part: Mapping[str, Any]) -> str:
    text = part.get("text", part.get("value"))
    if not isinstance(text, str):
        raise ValueError("a part of the type 'text' has no 'text'")
    return text


def _counted(text: str, media: dict[str, list[Any]]) -> str:
    for tag in tags_of(text):
        media[tag.kind].append(None)
    return text


def _medium(part: Mapping[str, Any], kind: str) -> Any:
    """The value of a part: its place or its bytes, with the options beside it."""
    names = (kind, _KINDS[kind], "url", "path", "value", "bytes", "data")
    value = next((part[name] for name in names if part.get(name) is not None), None)
    if value is None:
        return None
    if isinstance(value, list):
        raise ValueError(
            f"a {_KINDS[kind]} given as a list of {len(value)} frames; put the frames into a "
            "folder and list it with mmr1-data frames"
        )
    beside = {k: v for k, v in part.items() if k not in ("type", *names) and v is not None}
    inner = dict(value) if isinstance(value, Mapping) else {"path": value}
    return {**inner, **beside}


def _listed(column: Any) -> list[Any]:
    if column is None or column == "":
        return []
    return list(column) if isinstance(column, list | tuple) else [column]


_NAME, _BOX = "<ref-object>", "<bbox>"
_ONLY_BOXES = re.compile(r"(?:<bbox>|<ref-object>|[\s\[\](),.;:'\"])*")
_SPACES: dict[str, Callable[..., Space]] = {"real": pixels, "norm1": unit, "norm1000": thousandths}


@dataclass(frozen=True, slots=True)
class Objects:
    """A conversation with its names filled in, and the boxes that are its gold answer.

    Attributes:
        turns: The turns. A reply that was nothing but boxes is gone.
        boxes: The gold boxes; None without any.
        space: Space of the numbers: ``real`` (pixels), ``norm1`` or ``norm1000``.
        used: Whether the column had a placeholder or a gold; else it is left in ``meta``.
    """

    turns: Turns
    boxes: Sequence[Sequence[float]] | None = None
    space: str = "real"
    used: bool = False

    def ground(self, sample: Sample) -> Sample:
        """The sample with the boxes as its gold answer, if there are any."""
        if self.boxes is None:
            return sample
        if self.space == "real" or not sample.media:
            return grounded(sample, self.boxes)
        size = image_size(sample.media[0])
        return grounded(sample, self.boxes, _SPACES[self.space](), size)


def place_objects(turns: Turns, column: Any, *, needs_gold: bool) -> Objects:
    """Fill the placeholders of a conversation.

    Args:
        turns: The conversation.
        column: The value of ``objects``: a mapping with ``ref``, ``bbox`` and ``bbox_type``, or a
            list of ``{"caption", "bbox", "bbox_type"}``, or one of them as JSON text.
        needs_gold: Boxes without a placeholder are the gold answer of a question without a reply.

    Raises:
        ValueError: If the numbers of names or boxes differ from that of the placeholders, or boxes
            stand within a text: there they would need the pixels that the model sees, which a
            record does not know.
    """
    names, boxes, space = _read(column)
    text = "".join(text for _, text in turns)
    if not names and not boxes and _NAME not in text and _BOX not in text:
        return Objects(turns)
    if text.count(_NAME) not in (0, len(names)):
        raise ValueError(f"{text.count(_NAME)} {_NAME} placeholder(s) but {len(names)} name(s)")
    if _BOX not in text:
        open_question = needs_gold and bool(boxes) and turns[-1][0] == "user"
        filled = _named(turns, names)
        if open_question:
            return Objects(filled, boxes, space, used=True)
        return Objects(filled, used=_NAME in text)
    role, reply = turns[-1]
    if role != "assistant" or _BOX in "".join(t for _, t in turns[:-1]):
        raise ValueError(
            f"{_BOX} in a question: its numbers would have to be in pixels of the image as the "
            "model sees it, which no record knows; drop the row"
        )
    if not _ONLY_BOXES.fullmatch(reply):
        raise ValueError(
            f"{_BOX} within a text: mmr1 learns boxes as gold answers, not inside demonstrations; "
            "give the row a reply of boxes alone, or drop it"
        )
    if reply.count(_BOX) != len(boxes):
        raise ValueError(f"{reply.count(_BOX)} {_BOX} placeholder(s) but {len(boxes)} box(es)")
    return Objects(_named(turns, names)[:-1], boxes, space, used=True)


def _named(turns: Turns, names: Sequence[str]) -> Turns:
    rest = iter(names)
    return [(role, re.sub(_NAME, lambda _: next(rest), text)) for role, text in turns]


def _read(column: Any) -> tuple[list[str], list[Sequence[float]], str]:
    """``(names, boxes, space)``."""
    value = json.loads(column) if isinstance(column, str) and column else column
    if not value:
        return [], [], "real"
    if isinstance(value, Sequence):
        entries = value
        names = [str(e["caption"]) for e in entries if e.get("caption")]
        boxes = [e["bbox"] for e in entries if e.get("bbox")]
        kinds = {e.get("bbox_type") or "real" for e in entries}
    elif isinstance(value, Mapping):
        names = [str(name) for name in value.get("ref") or []]
        boxes = list(value.get("bbox") or [])
        kinds = {value.get("bbox_type") or "real"}
    else:
        raise ValueError(f"'objects' is {type(value).__name__}, neither a mapping nor a list")
    if len(kinds) > 1 or not kinds <= set(_SPACES):
        raise ValueError(f"bbox_type {', '.join(sorted(kinds))}; known are {', '.join(_SPACES)}")
    if points := [box for box in boxes if len(box) != 4]:
        raise ValueError(f"{list(points[0])} is not a box of four numbers")
    return names, boxes, kinds.pop()
