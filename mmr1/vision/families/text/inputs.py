"""Prompts of a text model: its tokenizer, and one row of positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NoReturn

import torch
from transformers import AutoTokenizer

from mmr1.types import MediaRef, Message, Prompt, Sample
from mmr1.vision.families.chat import Chat, ChatOptions, load_chat
from mmr1.vision.families.family import EngineInput, Kind, ReadPrompt
from mmr1.vision.families.model_path import from_pretrained
from mmr1.vision.families.stopping import stop_ids
from mmr1.vision.prepare import Medium


@dataclass(frozen=True, slots=True)
class TextFamily:
    """A ``PackedFamily`` without media; its processor is the tokenizer."""

    path: str
    processor: Any
    tokenizer: Any
    chat: Chat
    pad_id: int
    stop_ids: tuple[int, ...]
    forbidden_ids: tuple[int, ...]

    shares_prompts = True
    recurrent = False

    @property
    def placeholder_kinds(self) -> Mapping[int, Kind]:
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

    def observation_text(self, messages: Sequence[Message], ended: bool) -> str:
        return self.chat.observation_text(messages, ended)

    def read_text(self, text: str, media: Sequence[Medium]) -> list[int]:
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return self.expand_placeholders(ids, media)

    def decode_media(self, media: MediaRef) -> NoReturn:
        raise ValueError(f"{media}: model.path '{self.path}' is a text model")

    def media_tokens(self, media: MediaRef) -> NoReturn:
        self.decode_media(media)

    def prepare_media(self, media: MediaRef) -> NoReturn:
        self.decode_media(media)

    def measure_media(self, media: MediaRef) -> NoReturn:
        self.decode_media(media)

    def check_media(self, media: MediaRef) -> NoReturn:
        self.decode_media(media)

    def prompt_length(self, prompt: Prompt) -> int:
        return len(prompt.token_ids)

    def read_prompt(self, prompt: Prompt, media: Sequence[Medium]) -> ReadPrompt:
        ids = torch.tensor(prompt.token_ids)
        return ReadPrompt(ids, torch.arange(len(ids))[None], len(ids))

    def expand_placeholders(self, token_ids: Sequence[int], media: Sequence[Medium]) -> list[int]:
        return list(token_ids)

    def prompt_positions(self, prompt_ids: Sequence[int], media: Sequence[Medium]) -> torch.Tensor:
        return torch.arange(len(prompt_ids))[None]

    def completion_start(self, prompt_positions: torch.Tensor) -> int:
        return prompt_positions.shape[1]

    def engine_inputs(self, media: Sequence[Medium]) -> dict[str, EngineInput]:
        return {}

    def engine_spans(
        self, token_ids: Sequence[int], media: Sequence[Medium]
    ) -> list[tuple[int, int]]:
        return []

    def engine_processor_options(self, kinds: Sequence[Kind]) -> dict[str, Any]:
        return {}

    def engine_grid(self, kind: Kind, inputs: Mapping[str, Any]) -> NoReturn:
        raise AssertionError(f"a text model was given a {kind}")


def load_family(path: str, chat: ChatOptions, trust_remote_code: bool) -> TextFamily:
    """See ``Architecture.load_family``."""
    try:
        tokenizer = from_pretrained(AutoTokenizer, path, trust_remote_code)
    except (OSError, ValueError) as error:
        raise ValueError(f"model.path '{path}': its tokenizer cannot be loaded: {error}") from error
    _check_tokenizer(path, tokenizer)
    stops = stop_ids(path, tokenizer)
    # Llama has no padding token; nothing is ever read where padding is.
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return TextFamily(
        path=path,
        processor=tokenizer,
        tokenizer=tokenizer,
        chat=load_chat(path, tokenizer, tokenizer, attrgetter("text"), chat),
        pad_id=pad,
        stop_ids=stops,
        forbidden_ids=tuple({pad} - {*stops}),
    )


def _check_tokenizer(path: str, tokenizer: Any) -> None:
    """Check that the tokenizer has its file; without it transformers makes an empty one."""
    if tokenizer.eos_token_id is None or len(tokenizer) < 256:
        raise ValueError(
            f"model.path '{path}': its tokenizer has {len(tokenizer)} tokens, and its end of "
            f"sequence is {tokenizer.eos_token!r}; copy tokenizer.json and tokenizer_config.json "
            "of the model there"
        )
