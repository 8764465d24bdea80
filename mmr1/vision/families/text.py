"""The family of text models: no tower, no media."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NoReturn

import torch
from transformers import AutoTokenizer

from mmr1.types import MediaKind, MediaRef, Message, Prompt, Sample, TextPart
from mmr1.vision.families.chat import Chat, ChatOptions, load_chat
from mmr1.vision.families.family import ReadPrompt
from mmr1.vision.families.model_path import from_pretrained
from mmr1.vision.families.stopping import declared_stops
from mmr1.vision.prepare import Medium


@dataclass(frozen=True, slots=True)
class TextFamily:
    """A family without media, whose processor is the tokenizer; a ``WholeFamily``."""

    path: str
    processor: Any
    tokenizer: Any
    chat: Chat
    pad_id: int
    stop_ids: tuple[int, ...]
    forbidden_ids: tuple[int, ...]
    recurrent: bool

    shares_prompts = False

    @property
    def placeholder_kinds(self) -> Mapping[int, MediaKind]:
        return {}

    def render_prompt(self, sample: Sample, system_prompt: str | None = None) -> Prompt:
        if sample.shown:
            raise ValueError(
                f"sample '{sample.id}' shows {sample.shown[0]}, and model.path '{self.path}' is a "
                "text model; take a vision-language model, or records without media"
            )
        return self.chat.render(sample, system_prompt)

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> TextFamily:
        return replace(self, chat=self.chat.with_tools(tools))

    def read_text(self, text: str, media: Sequence[Medium]) -> list[int]:
        return self.chat.tokens(text)

    def decode_media(self, media: MediaRef) -> NoReturn:
        raise ValueError(f"{media}: model.path '{self.path}' is a text model")

    def media_tokens(self, media: MediaRef) -> NoReturn:
        self.decode_media(media)

    def prepare_media(self, media: MediaRef) -> NoReturn:
        self.decode_media(media)

    def prompt_length(self, prompt: Prompt) -> int:
        return len(prompt.token_ids)

    def read_prompt(self, prompt: Prompt, media: Sequence[Medium]) -> ReadPrompt:
        ids = torch.tensor(prompt.token_ids)
        return ReadPrompt(ids, torch.arange(len(ids))[None], len(ids))

    def arguments_of_media(
        self, ids: torch.Tensor, media: Sequence[Medium]
    ) -> dict[str, torch.Tensor]:
        return {}

    def example_prompts(self) -> list[ReadPrompt]:
        """Two texts, for the probe."""
        texts = [TextPart(f"Which of these is number {n}? " * (1 + n)) for n in range(2)]
        samples = [Sample("example", (Message("user", (text,)),)) for text in texts]
        return [self.read_prompt(self.render_prompt(sample), ()) for sample in samples]

    def engine_processor_options(
        self, kinds: Sequence[MediaKind], rates: Sequence[float]
    ) -> dict[str, Any]:
        return {}


def load_text_family(
    path: str, config: Any, recurrent: bool, chat: ChatOptions, trust_remote_code: bool
) -> TextFamily:
    """See ``Architecture.load_family``."""
    tokenizer = from_pretrained(AutoTokenizer, path, trust_remote_code)
    _check_tokenizer(path, tokenizer)
    stops = declared_stops(path, config, tokenizer)
    own_chat = load_chat(path, config, tokenizer, tokenizer, attrgetter("text"), chat, stops)
    # Llama has no padding token; nothing is ever read where padding is.
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return TextFamily(
        path=path,
        processor=tokenizer,
        tokenizer=tokenizer,
        chat=own_chat,
        pad_id=pad,
        stop_ids=own_chat.stop_ids,
        forbidden_ids=own_chat.forbidden({pad}),
        recurrent=recurrent,
    )


def _check_tokenizer(path: str, tokenizer: Any) -> None:
    """Check that the tokenizer has its file; without it transformers makes an empty one."""
    if tokenizer.eos_token_id is None or len(tokenizer) < 256:
        raise ValueError(
            f"model.path '{path}': its tokenizer has {len(tokenizer)} tokens, and its end of "
            f"sequence is {tokenizer.eos_token!r}; copy tokenizer.json and tokenizer_config.json "
            "of the model there"
        )
