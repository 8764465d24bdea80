"""The family of text models; and the architecture of those whose layers are Llama's, small ones
among them (Qwen2.5, Qwen3, Llama).

They have no tower, and one row of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from mmr1.types import MediaKind, MediaRef, Message, Prompt, Sample, TextPart
from mmr1.vision.families.chat import Chat, ChatOptions, load_chat
from mmr1.vision.families.family import (
    EngineInput,
    ModelFamily,
    ModelParts,
    ModelShape,
    ReadPrompt,
    decoder_shape,
)
from mmr1.vision.families.model_path import from_pretrained
from mmr1.vision.families.stopping import stop_ids
from mmr1.vision.families.tiny_tokenizer import (
    QWEN_TEMPLATE,
    VOCABULARY,
    qwen_tokenizer,
    train_bpe,
)
from mmr1.vision.prepare import Medium


@dataclass(frozen=True, slots=True)
class TextFamily:
    """A family without media; its processor is the tokenizer.

    A ``PackedFamily``, or a ``WholeFamily`` of the models that mmr1 does not name.
    """

    path: str
    processor: Any
    tokenizer: Any
    chat: Chat
    pad_id: int
    stop_ids: tuple[int, ...]
    forbidden_ids: tuple[int, ...]
    shares_prompts: bool = True
    recurrent: bool = False

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

    def arguments_of_media(
        self, ids: torch.Tensor, media: Sequence[Medium]
    ) -> dict[str, torch.Tensor]:
        return {}

    def example_prompts(self) -> list[ReadPrompt]:
        """Two texts, for the probe."""
        texts = [TextPart(f"Which of these is number {n}? " * (1 + n)) for n in range(2)]
        samples = [Sample("example", (Message("user", (text,)),)) for text in texts]
        return [self.read_prompt(self.render_prompt(sample), ()) for sample in samples]

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

    def engine_processor_options(
        self, kinds: Sequence[MediaKind], rates: Sequence[float]
    ) -> dict[str, Any]:
        return {}

    def engine_grid(self, kind: MediaKind, inputs: Mapping[str, Any]) -> NoReturn:
        raise AssertionError(f"a text model was given a {kind}")


def load_text_family(
    path: str, chat: ChatOptions, trust_remote_code: bool, **kind: bool
) -> TextFamily:
    """See ``Architecture.load_family``; ``kind`` is of the family's last two attributes."""
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
        **kind,
    )


def _check_tokenizer(path: str, tokenizer: Any) -> None:
    """Check that the tokenizer has its file; without it transformers makes an empty one."""
    if tokenizer.eos_token_id is None or len(tokenizer) < 256:
        raise ValueError(
            f"model.path '{path}': its tokenizer has {len(tokenizer)} tokens, and its end of "
            f"sequence is {tokenizer.eos_token!r}; copy tokenizer.json and tokenizer_config.json "
            "of the model there"
        )


LLAMA_TOKENS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
)

LLAMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

THINKING_TEMPLATE = QWEN_TEMPLATE.removesuffix("{% endif %}") + (
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""Qwen3's: an empty thought in the prompt keeps the model from thinking."""


@dataclass(frozen=True, slots=True)
class Preset:
    """Sizes of a small model. Heads are 32 wide, the least that vLLM's CPU attention takes."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int


PRESETS = {"tiny": Preset(128, 256, 2, 4, 2), "20m": Preset(256, 2304, 10, 8, 4)}


def new_text_model(
    model_type: str, output: Path, preset: str, seed: int, corpus: Sequence[str] | None
) -> int:
    """See ``Architecture.new_model``."""
    make_config, make_tokenizer = _KINDS[model_type]
    tokenizer, size = make_tokenizer(corpus), PRESETS[preset]
    config = make_config(
        vocab_size=VOCABULARY,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).float()
    # As the models of the hub: a turn ends the completion, and so does the end of the text.
    ends = ("<|endoftext|>", "<|end_of_text|>")
    known = tokenizer.get_vocab()
    of_text = [known[name] for name in ends if name in known]
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *of_text]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    return sum(p.numel() for p in model.parameters())


def _thinking_tokenizer(corpus: Sequence[str] | None) -> Any:
    return qwen_tokenizer(corpus, THINKING_TEMPLATE)


def _llama_tokenizer(corpus: Sequence[str] | None) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=train_bpe(corpus, LLAMA_TOKENS),
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>",
        chat_template=LLAMA_TEMPLATE,
    )


_KINDS: Mapping[str, tuple[Callable[..., Any], Callable[[Sequence[str] | None], Any]]] = {
    "qwen2": (Qwen2Config, qwen_tokenizer),
    "qwen3": (Qwen3Config, _thinking_tokenizer),
    "llama": (LlamaConfig, _llama_tokenizer),
}


@dataclass(frozen=True, slots=True)
class TextArchitecture:
    """A ``PackedArchitecture`` of a ``model_type``."""

    model_type: str

    auto_class = AutoModelForCausalLM
    shares_prompts = True
    position_rows = 1
    presets = tuple(PRESETS)

    no_mask = torch.empty(0, 0, 0, 0)

    def load_family(
        self,
        path: str,
        config: Any,
        chat: ChatOptions,
        trust_remote_code: bool,
        **media_options: float | str,
    ) -> ModelFamily:
        return load_text_family(path, chat, trust_remote_code)

    def shape(self, config: Any) -> ModelShape:
        return ModelShape(decoder_shape(config, normed_heads=self.model_type == "qwen3"))

    def parts(self, model: Any) -> ModelParts:
        return ModelParts(
            language_model=model.model,
            layers=model.model.layers,
            embed_tokens=model.model.embed_tokens,
            lm_head=model.lm_head,
            tower=None,
            tower_blocks=(),
            tower_mergers=(),
            placeholder_ids=(),
        )

    def media_inputs(self, media: Sequence[Medium]) -> dict[str, torch.Tensor]:
        return {}

    def encode(self, tower: Any, media: Sequence[Medium]) -> NoReturn:
        raise AssertionError("a text model has no tower")

    def blank_medium(self, tower: Any) -> NoReturn:
        raise AssertionError("a text model has no tower")

    def language_inputs(
        self, embeddings: torch.Tensor, slots: torch.Tensor, features: torch.Tensor
    ) -> NoReturn:
        raise AssertionError("a text model sees nothing")

    def position_ids(self, rope: torch.Tensor, places: torch.Tensor | None = None) -> torch.Tensor:
        return rope[0]

    def in_files(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        return weight

    def new_model(
        self, output: Path, preset: str, seed: int, corpus: Sequence[str] | None = None
    ) -> int:
        return new_text_model(self.model_type, output, preset, seed, corpus)


QWEN2 = TextArchitecture("qwen2")
QWEN3 = TextArchitecture("qwen3")
LLAMA = TextArchitecture("llama")
