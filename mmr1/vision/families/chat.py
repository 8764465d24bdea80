"""The chat template: the model's own or one that replaces it, and how it is applied."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from mmr1.types import (
    ContentPart,
    MediaKind,
    MediaRef,
    Message,
    Prompt,
    Sample,
    TextPart,
    media_of,
)


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """A configuration's changes to the chat template.

    Attributes:
        template: Jinja source in place of the model's own template; None keeps that.
        variables: Variables of the template, such as ``enable_thinking``.
        tools: JSON schemas of the functions that the policy may call.
        tool_instructions: Text of the system prompt about tools, in place of what the template
            makes of their schemas; nothing for an empty text.
        stop: Texts that end a completion (``rollout.stop``).
    """

    template: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_instructions: str | None = None
    stop: tuple[str, ...] = ()


def read_template(file: str | None) -> str | None:
    """The Jinja source in the file that ``data.chat_template`` names; None without one.

    Raises:
        ValueError: If the file is missing.
    """
    if file is None:
        return None
    if not Path(file).is_file():
        raise ValueError(f"data.chat_template '{file}': no such file; name a .jinja file")
    return Path(file).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the assistant, as a chat template writes it.

    Attributes:
        opened: End of a prompt that belongs to the answer, such as ``<think>``; empty in most
            templates.
        end: Token that ends the turn; None if the template ends it with plain text, or not at all.
        markers: Special tokens around turns, which are no part of an answer.
    """

    opened: str = ""
    end: int | None = None
    markers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Chat:
    """Turns a sample into text and token ids.

    Attributes:
        processor: Has ``apply_chat_template``; a tokenizer in a text family.
        tokenizer: Tokenizer of the text.
        content: A message's ``content`` as the template reads it: text, or a list of parts.
        variables: Further variables of the template.
        tool_instructions: Text that is added to the system prompt.
        knows_tools: The template writes messages of the role ``tool`` itself.
        lists_tools: It writes the schemas in its variable ``tools`` into the prompt.
        special: Tokens that no text of others may hold.
        turn: A turn of the assistant.
        stop_ids: Tokens that end a completion.
        rows: Rows of the model's input embedding; None if its configuration does not say.
        beyond: Tokens without a row that the model replaces, such as placeholders.
    """

    processor: Any
    tokenizer: Any
    content: Callable[[Message], Any]
    variables: dict[str, Any]
    tool_instructions: str = ""
    knows_tools: bool = False
    lists_tools: bool = False
    special: tuple[str, ...] = ()
    turn: Turn = Turn()
    stop_ids: tuple[int, ...] = ()
    rows: int | None = None
    beyond: frozenset[int] = frozenset()

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> Chat:
        """See ``ModelFamily.with_tools``."""
        if self.lists_tools:
            return replace(self, variables={**self.variables, "tools": [dict(t) for t in tools]})
        return replace(self, tool_instructions=tool_instructions(tools))

    def render(self, sample: Sample, system_prompt: str | None) -> Prompt:
        """See ``ModelFamily.render_prompt``."""
        # A demonstration's answer is not part of its prompt.
        messages = sample.messages[: sample.demonstrated_from]
        if system_prompt is not None and all(m.role != "system" for m in messages):
            messages = (Message("system", (TextPart(system_prompt),)), *messages)
        if self.tool_instructions:
            messages = self._with_instructions(messages)
        text = self._rendered(messages, add_generation_prompt=True)
        self._check_shown(messages, text)
        ids = tuple(self.tokens(text))
        if not ids:
            raise ValueError(
                "the chat template makes an empty text of it; name another template in "
                "data.chat_template"
            )
        return Prompt(sample=sample, text=text, token_ids=ids, opened=self.turn.opened)

    def tokens(self, text: str) -> list[int]:
        """Return the token ids of a text, placeholders not expanded.

        Raises:
            ValueError: If the model has no embedding for one of them.
        """
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if self.rows is not None and ids and max(ids) >= self.rows:
            for token in ids:
                if token >= self.rows and token not in self.beyond:
                    raise ValueError(
                        f"the tokenizer makes token {token} ({self.tokenizer.decode([token])!r}) "
                        f"of it, and the model has {self.rows} rows of embeddings; drop such rows, "
                        "or copy the tokenizer of the model beside it"
                    )
        return ids

    def forbidden(self, never: Iterable[int | None]) -> tuple[int, ...]:
        """Return the tokens among ``never`` that the model could sample, without stop tokens."""
        ids = {token for token in never if token is not None} - {*self.stop_ids}
        return tuple(sorted(t for t in ids if self.rows is None or t < self.rows))

    def response_tokens(self, text: str) -> list[int]:
        """Return the token ids of a written answer, with the token that ends its turn."""
        end = self.tokenizer.eos_token_id if self.turn.end is None else self.turn.end
        return [*self.tokens(text), end]

    def completion_text(self, ids: Sequence[int]) -> str:
        """Return what the model wrote: its tokens as text, without those around turns.

        Special tokens such as ``<answer>`` are part of the text: rewards read them.
        """
        markers = self.turn.markers
        text: str = self.tokenizer.decode([token for token in ids if token not in markers])
        return text

    def observation_text(self, messages: Sequence[Message], ended: bool) -> str:
        """Return the text between a turn of the policy and its next one: answers of tools.

        Args:
            messages: Messages of the role ``tool``; each medium becomes one placeholder.
            ended: The turn before has the token that ends it.

        Raises:
            ValueError: If the chat template cannot write them.
        """
        said = (Message("user", (TextPart("u"),)), Message("assistant", (TextPart("a"),)))
        before = self._rendered(said)
        plain = (without_tokens(message, self.special) for message in messages)
        whole = self._rendered((*said, *plain), add_generation_prompt=True)
        # Templates end a turn with the end token and, most of them, a line break.
        token = self.turn.end
        end = "" if token is None else self.tokenizer.convert_ids_to_tokens(token)
        after = before.rpartition(end)[2] if end else ""
        if not end or after.strip() or not whole.startswith(before):
            raise ValueError(
                "the chat template does not end an assistant's turn with a token of its own, or "
                "changes the turn once an answer of a tool follows; name another template in "
                "data.chat_template"
            )
        return ("" if ended else end) + after + whole[len(before) :]

    def _check_shown(self, messages: Sequence[Message], text: str) -> None:
        """Raises ValueError where the template writes nothing for a kind of media."""
        for kind in {medium.kind for medium in media_of(messages)}:
            others = [
                replace(m, parts=tuple(p for p in m.parts if not _is_medium(p, kind)))
                for m in messages
            ]
            if self._rendered(others, add_generation_prompt=True) == text:
                raise ValueError(
                    f"the chat template leaves {kind}s out, so the model would not see them; drop "
                    f"rows with {kind}s, or name a template that writes them in data.chat_template"
                )

    def _rendered(self, messages: Sequence[Message], **options: Any) -> str:
        if not self.knows_tools and any(m.role == "tool" for m in messages):
            messages = _as_user(messages)
        conversation = [{"role": m.role, "content": self.content(m)} for m in messages]
        try:
            return self.processor.apply_chat_template(
                conversation, tokenize=False, **self.variables, **options
            )
        except Exception as error:  # a template is a program: it may raise anything
            told = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise ValueError(
                f"the chat template cannot render it ({told}); name another template in "
                "data.chat_template, or change the messages"
            ) from error

    def _with_instructions(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        if messages and messages[0].role == "system":
            own, *rest = messages
            added = TextPart(f"\n\n{self.tool_instructions}")
            return (replace(own, parts=(*own.parts, added)), *rest)
        return (Message("system", (TextPart(self.tool_instructions),)), *messages)


def _is_medium(part: ContentPart, kind: MediaKind) -> bool:
    return isinstance(part, MediaRef) and part.kind == kind


def _as_user(messages: Sequence[Message]) -> list[Message]:
    """The answers of tools as messages of the user, for templates that know no tools.

    Those that follow each other are one message of the user.
    """
    plain: list[Message] = []
    answered = False
    for message in messages:
        if message.role != "tool":
            plain.append(message)
            answered = False
            continue
        begin, end = TextPart("<tool_response>\n"), TextPart("\n</tool_response>")
        parts = (begin, *message.parts, end)
        if answered:
            parts = (*plain.pop().parts, TextPart("\n"), *parts)
        plain.append(Message("user", parts))
        answered = True
    return plain


def tool_instructions(tools: Sequence[Mapping[str, Any]]) -> str:
    """Instructions about tools for the system prompt, if the chat template does not have them."""
    if not tools:
        return ""
    listed = "\n".join(json.dumps(tool) for tool in tools)
    return (
        f"You can call these functions:\n<tools>\n{listed}\n</tools>\n"
        "To call one, write its name and its arguments as JSON:\n"
        '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>\n'
        "Its answer comes in the next message. Pictures are numbered from 0, in their order in the "
        "conversation."
    )


def load_chat(
    path: str,
    config: Any,
    processor: Any,
    tokenizer: Any,
    content: Callable[[Message], Any],
    options: ChatOptions,
    declared: Set[int],
) -> Chat:
    """Load the chat template of the model at ``path``, or the one that replaces it.

    One that replaces it is put into the processor, so that it is saved beside every checkpoint.

    Args:
        declared: Tokens that the model's files name as ends; see ``declared_stops``.

    Raises:
        ValueError: If there is none, or it does not read a variable that is set.
    """
    if options.template is not None:
        processor.chat_template = options.template
    template = processor.chat_template
    if not template:
        raise ValueError(
            f"model.path '{path}' has no chat template; copy chat_template.jinja of the model "
            "there, or name a .jinja file in data.chat_template"
        )
    variables = dict(options.variables)
    for name in variables:
        if name not in str(template):
            raise ValueError(
                f"data.chat_template_kwargs.{name} is set, and the chat template does not read it; "
                "leave it out, or name a template that does in data.chat_template"
            )
    instructions = options.tool_instructions
    speaks_of_tools = "tools" in str(template)
    if instructions is None and speaks_of_tools and options.tools:
        variables["tools"] = [dict(tool) for tool in options.tools]
    if instructions is None:
        instructions = "" if speaks_of_tools else tool_instructions(options.tools)
    knows_tools = any(f"{quote}tool{quote}" in str(template) for quote in "'\"")
    chat = Chat(
        processor,
        tokenizer,
        content,
        variables,
        instructions,
        knows_tools,
        speaks_of_tools,
        special=tuple(token for token in tokenizer.get_added_vocab() if len(token) > 1),
        rows=getattr(config.get_text_config(), "vocab_size", None),
        beyond=frozenset(_placeholders(config)),
    )
    turn = _read_turn(chat)
    added = tokenizer.get_added_vocab()
    stops = declared | {added[text] for text in options.stop if text in added}
    stops |= set() if turn.end is None else {turn.end}
    markers = turn.markers | (declared & _special_ids(tokenizer))
    return replace(chat, turn=replace(turn, markers=markers), stop_ids=tuple(sorted(stops)))


def _placeholders(config: Any) -> list[int]:
    """Return the ids that a model's configuration gives to its media."""
    ends = ("_token_id", "_token_index")
    named = [value for name, value in vars(config).items() if name.endswith(ends)]
    own = [getattr(config, f"{name}_token_id", None) for name in ("eos", "bos", "pad")]
    return [token for token in named if isinstance(token, int) and token not in own]


_SAID = "0123456789"
"""An answer of the assistant that no template changes."""
_TAG = re.compile(r"<(/?)([A-Za-z][\w.-]*)>")


def _read_turn(chat: Chat) -> Turn:
    added, special = chat.tokenizer.get_added_vocab(), _special_ids(chat.tokenizer)
    question = Message("user", (TextPart("u"),))
    try:
        before = chat._rendered((question,))
        asked = chat._rendered((question,), add_generation_prompt=True)
        written = chat._rendered((question, Message("assistant", (TextPart(_SAID),))))
    except ValueError:  # of a template that takes other conversations alone
        return Turn()
    header, _, tail = written.rpartition(_SAID)
    first = chat.tokenizer(tail.lstrip(), add_special_tokens=False)["input_ids"][:1]
    opened = _opened(asked[len(before) :], header) if asked.startswith(before) else ""
    around = asked.removesuffix(opened) + header + tail
    known = {*chat.tokenizer(around, add_special_tokens=False)["input_ids"], *first}
    ends = (chat.tokenizer.eos_token_id, chat.tokenizer.bos_token_id, chat.tokenizer.pad_token_id)
    return Turn(
        opened,
        first[0] if first and first[0] in added.values() else None,
        frozenset(special & {*known, *ends}),
    )


def _opened(opening: str, header: str) -> str:
    """Return the part of an assistant's opening from the first tag on that stays open.

    A tag that is as open before a written answer belongs to the turn, and not to the answer.
    """
    outside = [tag[2] for tag in _open_tags(header)]
    inner = [tag for tag in _open_tags(opening) if tag[2] not in outside]
    return opening[inner[0].start() :] if inner else ""


def _open_tags(text: str) -> list[re.Match[str]]:
    opened: list[re.Match[str]] = []
    for tag in _TAG.finditer(text):
        if not tag[1]:
            opened.append(tag)
        elif names := [place for place, one in enumerate(opened) if one[2] == tag[2]]:
            del opened[names[-1] :]
    return opened


def _special_ids(tokenizer: Any) -> set[int]:
    """Return the ids that ``decode`` would drop as special tokens."""
    return {*tokenizer.all_special_ids} | {
        token for token, added in tokenizer.added_tokens_decoder.items() if added.special
    }


def without_tokens(message: Message, special: Sequence[str]) -> Message:
    """The message with such tokens split: they would end its turn, or stand for a picture."""
    parts: list[ContentPart] = []
    for is_text, run in groupby(message.parts, lambda part: isinstance(part, TextPart)):
        if not is_text:
            parts.extend(run)
            continue
        # Joined first: a token may be split over neighbours.
        text = "".join(part.text for part in run if isinstance(part, TextPart))
        for token in special:
            text = text.replace(token, f"{token[0]} {token[1:]}")
        parts.append(TextPart(text))
    return replace(message, parts=tuple(parts))


def message_parts(message: Message) -> list[dict[str, str]]:
    """The ``content`` of a message as the templates of vision-language models read it."""
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": part.kind}
        for part in message.parts
    ]
