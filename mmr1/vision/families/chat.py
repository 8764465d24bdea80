"""The chat template: the model's own or one that replaces it, and how it is applied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmr1.types import Message, Prompt, Sample


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What a configuration changes about the chat template.

    Attributes:
        template: Jinja source in place of the model's own template; None keeps that.
        enable_thinking: The template's variable of this name; None leaves it undefined.
    """

    template: str | None = None
    enable_thinking: bool | None = None


def read_template(file: str | None) -> str | None:
    """The Jinja source in the file that ``data.chat_template`` names; None without one.

    Raises:
        ValueError: There is no such file.
    """
    if file is None:
        return None
    if not Path(file).is_file():
        raise ValueError(f"data.chat_template '{file}': no such file; name a .jinja file")
    return Path(file).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Chat:
    """Turns a sample into text and token ids.

    Attributes:
        processor: Has ``apply_chat_template``; a tokenizer in a text family.
        tokenizer: For the text.
        content: A message's ``content`` as the template reads it: text, or a list of parts.
        variables: Further variables of the template.
    """

    processor: Any
    tokenizer: Any
    content: Callable[[Message], Any]
    variables: dict[str, Any]

    def render(self, sample: Sample, system_prompt: str | None) -> Prompt:
        """See ``ModelFamily.render_prompt``."""
        conversation: list[dict[str, Any]] = []
        if system_prompt is not None and all(m.role != "system" for m in sample.messages):
            conversation.append({"role": "system", "content": system_prompt})
        for message in sample.messages:
            if message.role == "assistant" and message is sample.messages[-1]:
                break  # a demonstration's answer is not part of its prompt
            conversation.append({"role": message.role, "content": self.content(message)})
        text = self.processor.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=True, **self.variables
        )
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return Prompt(sample=sample, text=text, token_ids=tuple(ids))


def load_chat(
    path: str,
    processor: Any,
    tokenizer: Any,
    content: Callable[[Message], Any],
    options: ChatOptions,
) -> Chat:
    """The chat template of the model at ``path``, or the one that replaces it.

    One that replaces it is put into the processor, so that it is saved beside every checkpoint.

    Raises:
        ValueError: There is none, or it does not read ``enable_thinking`` and that is set.
    """
    if options.template is not None:
        processor.chat_template = options.template
    template = processor.chat_template
    if not template:
        raise ValueError(
            f"model.path '{path}' has no chat template; copy chat_template.jinja of the model "
            "there, or name a .jinja file in data.chat_template"
        )
    variables: dict[str, Any] = {}
    if options.enable_thinking is not None:
        if "enable_thinking" not in str(template):
            raise ValueError(
                "data.enable_thinking is set, and the chat template does not read it; leave it "
                "out, or name a template that does in data.chat_template"
            )
        variables["enable_thinking"] = options.enable_thinking
    return Chat(processor, tokenizer, content, variables)
