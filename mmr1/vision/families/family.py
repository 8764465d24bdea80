"""Protocols of a model family. ``docs/extend.md`` says how to add one.

Two protocols, since some callers have a model and no processor: :class:`ModelFamily` is what mmr1
asks about a model's inputs, :class:`Architecture` what it asks about the model itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, TypeGuard

import torch

from mmr1.boxes import SpaceName
from mmr1.types import MediaKind, MediaRef, Prompt, Sample
from mmr1.vision.families.chat import Chat, ChatOptions
from mmr1.vision.prepare import Medium


@dataclass(frozen=True, slots=True)
class EngineInput:
    """One argument that a rollout engine passes to its model, holding the media of one kind.

    Attributes:
        kind: Kind of the media.
        values: Rows of all these media, concatenated.
        sizes: ``[media]`` int64, rows of each; None where each has one.
    """

    kind: MediaKind
    values: torch.Tensor
    sizes: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt as the model reads it.

    Attributes:
        ids: ``[P]`` int64, placeholders expanded.
        positions: ``[rows, P]`` int64, for the rotary embedding.
        completion_start: Position of the first completion token, on all rows; each further one
            adds 1.
        arguments: Arguments that the model's own forward takes beside the ids, made for this prompt
            as a whole; empty where the prompt's media are prepared one by one.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    completion_start: int
    arguments: Mapping[str, torch.Tensor] = field(default_factory=dict)


class ModelFamily(Protocol):
    """Reads prompts and media for the models of a family; made for one model directory.

    The order of media is everywhere that of their placeholders in the prompt.
    """

    @property
    def shares_prompts(self) -> bool:
        """True for a ``PackedFamily``; others' own forward sees each completion whole."""
        ...

    @property
    def recurrent(self) -> bool:
        """True if layers carry a state from token to token (linear attention)."""
        ...

    @property
    def processor(self) -> Any:
        """transformers' processor, saved beside every checkpoint; a tokenizer in a text family."""
        ...

    @property
    def tokenizer(self) -> Any: ...

    @property
    def pad_id(self) -> int: ...

    @property
    def chat(self) -> Chat:
        """The chat template: turns of the assistant, their texts and tokens."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion."""
        ...

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        """Vision placeholders and padding, which are outside the policy's vocabulary.

        A completion that holds a placeholder cannot be fed back. Engines never sample these tokens,
        and the trainer's softmax leaves them out too.
        """
        ...

    @property
    def coordinates(self) -> SpaceName | None:
        """Coordinate space in which the models write boxes; None if it is not known."""
        ...

    @property
    def placeholder_kinds(self) -> Mapping[int, MediaKind]:
        """The kind of medium of each token that the chat template writes for one."""
        ...

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> Self:
        """The family with these JSON schemas of tools in its prompts."""
        ...

    def render_prompt(self, sample: Sample, system_prompt: str | None = None) -> Prompt:
        """Apply the chat template up to the assistant's turn; a medium stays one placeholder."""
        ...

    def read_text(self, text: str, media: Sequence[Medium]) -> list[int]:
        """A text that follows others, such as an answer of a tool, as the model reads it.

        Raises:
            ValueError: Placeholders and media differ in number or in kind.
        """
        ...

    def decode_media(self, media: MediaRef) -> Any:
        """Pixels of one medium, sampled and resized to what the model sees.

        Engine and trainer both start from these, so their processors have nothing left to resize.

        Returns:
            A PIL image, or for a video ``(frames [T, 3, H, W] uint8, VideoMetadata)``.
        """
        ...

    def media_tokens(self, media: MediaRef) -> int:
        """Tokens that the medium adds to a prompt, from its header: nothing is decoded."""
        ...

    def prompt_length(self, prompt: Prompt) -> int:
        """Tokens of a prompt with its placeholders expanded, media measured by their headers."""
        ...

    def prepare_media(self, media: MediaRef) -> Medium:
        """Decode one medium and run the processor on it, once."""
        ...

    def read_prompt(self, prompt: Prompt, media: Sequence[Medium]) -> ReadPrompt:
        """The prompt as the model reads it, with its prepared media.

        Raises:
            ValueError: Placeholders and media differ in number or in kind.
        """
        ...

    def engine_processor_options(
        self, kinds: Sequence[MediaKind], rates: Sequence[float]
    ) -> dict[str, Any]:
        """Options for an engine's own processor, which is given media from ``decode_media``.

        Args:
            kinds: Kinds of the media of a prompt.
            rates: Sampled frames per second of its videos.
        """
        ...


class PackedFamily(ModelFamily, Protocol):
    """A family whose models share a prompt among its completions: media are prepared one by one,
    and the positions of every token are known.
    """

    def measure_media(self, media: MediaRef) -> Medium:
        """The measurements of ``prepare_media``, from the header: nothing is decoded.

        Raises:
            ValueError: The header cannot be read.
        """
        ...

    def check_media(self, media: MediaRef) -> Medium:
        """The measurements of a medium, after decoding all that the model will see.

        Raises:
            ValueError: If the medium cannot be decoded.
        """
        ...

    def expand_placeholders(self, token_ids: Sequence[int], media: Sequence[Medium]) -> list[int]:
        """The prompt as the model reads it: each placeholder becomes the tokens of its medium.

        Raises:
            ValueError: Placeholders and media differ in number or in kind.
        """
        ...

    def prompt_positions(self, prompt_ids: Sequence[int], media: Sequence[Medium]) -> torch.Tensor:
        """Positions of an expanded prompt for the rotary embedding: ``[rows, P]`` int64.

        One row, or three (time, height, width) for M-RoPE.
        """
        ...

    def completion_start(self, prompt_positions: torch.Tensor) -> int:
        """Position of the first completion token, on all rows; each further one adds 1."""
        ...

    def engine_inputs(self, media: Sequence[Medium]) -> dict[str, EngineInput]:
        """Prepared media as arguments of the model inside a rollout engine, by name."""
        ...

    def engine_spans(
        self, token_ids: Sequence[int], media: Sequence[Medium]
    ) -> list[tuple[int, int]]:
        """``(first token, tokens)`` of each medium in the expansion of ``token_ids``.

        Text that stands between the placeholders of one medium is inside its span.
        """
        ...

    def engine_grid(self, kind: MediaKind, inputs: Mapping[str, Any]) -> tuple[int, int, int]:
        """The grid ``(t, h, w)`` in what an engine's own processor made of one medium."""
        ...


class ProcessorFamily(ModelFamily, Protocol):
    """A family whose processor is given whole prompts; its models find positions themselves."""

    def arguments_of_media(
        self, ids: torch.Tensor, media: Sequence[Medium]
    ) -> Mapping[str, torch.Tensor]:
        """Arguments of the model's forward, beside the ids, for tokens ``[R]`` of a completion in
        which tools show these media.
        """
        ...


def is_packed(family: ModelFamily) -> TypeGuard[PackedFamily]:
    """True if its models share a prompt among its completions."""
    return family.shares_prompts


def read_expanded(family: PackedFamily, prompt: Prompt, media: Sequence[Medium]) -> ReadPrompt:
    """``ModelFamily.read_prompt`` of a packed family."""
    ids = family.expand_placeholders(prompt.token_ids, media)
    positions = family.prompt_positions(ids, media)
    return ReadPrompt(torch.tensor(ids), positions, family.completion_start(positions))


@dataclass(frozen=True, slots=True)
class ModelParts:
    """The parts of a transformers model that mmr1 works on.

    Attributes:
        language_model: Called with ``inputs_embeds`` and ``position_ids``; its layers call the
            attention that ``config._attn_implementation`` names and hand extra arguments on to it.
        layers: The decoder layers, in order.
        embed_tokens: The input embedding.
        lm_head: The output embedding.
        tower: The vision tower; None in a text model.
        tower_blocks: Its transformer blocks.
        tower_mergers: Modules that bring its outputs to the width of the language model.
        placeholder_ids: Token ids that vision features are put in the place of.
    """

    language_model: Any
    layers: Sequence[torch.nn.Module]
    embed_tokens: Any
    lm_head: Any
    tower: torch.nn.Module | None
    tower_blocks: Sequence[torch.nn.Module]
    tower_mergers: Sequence[torch.nn.Module]
    placeholder_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StackShape:
    """A stack of transformer layers, for counting what they keep.

    Attributes:
        layers: Their number.
        hidden: Width of the residual stream.
        intermediate: Width of the MLP.
        queries: Width of all query heads together.
        keys: Width of all key heads together, and so of the value heads.
        heads: Query heads.
        gated: The MLP has a gate beside its first projection.
        normed_heads: Queries and keys are normalised, head by head.
        layer_norm: LayerNorm, which keeps less than RMSNorm does.
        rows_per_token: Rows of this stack that become one token of the language model.
        experts: MLPs that a row goes through, each of the width ``intermediate``; 0 where there is
            one for all rows.
    """

    layers: int
    hidden: int
    intermediate: int
    queries: int
    keys: int
    heads: int
    gated: bool = True
    normed_heads: bool = False
    layer_norm: bool = False
    rows_per_token: int = 1
    experts: int = 0

    @property
    def row_flops(self) -> float:
        """FLOPs of the matrices of all layers, forward, for one row; attention itself left out."""
        attention = self.hidden * (2 * self.queries + 2 * self.keys)
        mlp = (3 if self.gated else 2) * self.hidden * self.intermediate * max(1, self.experts)
        return 2.0 * self.layers * (attention + mlp)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The language model and the vision tower, None in a text model."""

    language: StackShape
    tower: StackShape | None = None

    @property
    def vision_token_flops(self) -> float:
        """FLOPs of the tower for one token of the language model; 0 without a tower."""
        tower = self.tower
        return 0.0 if tower is None else tower.row_flops * tower.rows_per_token

    @property
    def vision_token_cost(self) -> float:
        """FLOPs per vision token, as a multiple of the language model's per token."""
        return self.vision_token_flops / self.language.row_flops


def decoder_shape(config: Any, normed_heads: bool = False) -> StackShape:
    """The shape of a decoder with rotary embedding, grouped queries and a gated MLP."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    experts = getattr(config, "num_experts_per_tok", None) or 0
    width = getattr(config, "moe_intermediate_size", None) if experts else None
    width = width or getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    return StackShape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=width,
        queries=heads * head,
        keys=kv_heads * head,
        heads=heads,
        normed_heads=normed_heads,
        experts=experts,
    )


class Architecture(Protocol):
    """The models of a family. Stateless: one object serves them all."""

    @property
    def auto_class(self) -> Any:
        """transformers' auto class that loads these models."""
        ...

    @property
    def shares_prompts(self) -> bool:
        """True for a ``PackedArchitecture``."""
        ...

    @property
    def presets(self) -> Sequence[str]:
        """Sizes in which ``new_model`` makes models."""
        ...

    def load_family(
        self,
        path: str,
        config: Any,
        chat: ChatOptions,
        trust_remote_code: bool,
        **media_options: float | str,
    ) -> ModelFamily:
        """Load the processor beside a model.

        Args:
            path: Model directory or hub name.
            config: The model's configuration.
            chat: Template in place of the model's chat template, and its variables.
            trust_remote_code: Code beside the model is run.
            media_options: ``fps``, ``max_frames``, ... in place of what ``video_budget`` and
                ``image_budget`` have.

        Raises:
            ValueError: The processor cannot be loaded, or there is no chat template.
        """
        ...

    def shape(self, config: Any) -> ModelShape:
        """Sizes of the layers of a model with this configuration."""
        ...

    def parts(self, model: Any) -> ModelParts:
        """The parts of a transformers model that is not inside a peft model."""
        ...

    def in_files(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """A weight in the layout of the hub's files, which vLLM loads.

        Only for models that transformers saves otherwise than it finds them there.
        """
        ...

    def new_model(
        self, output: Path, preset: str, seed: int, corpus: Sequence[str] | None = None
    ) -> int:
        """Write a small model with random weights; returns its number of parameters.

        Args:
            output: A directory that is empty or does not exist.
            preset: One of ``presets``.
            corpus: Texts that the tokenizer learns its merges from; None for the family's own.
        """
        ...


class PackedArchitecture(Architecture, Protocol):
    """Models whose layers let completions share their prompt: for the packed forward."""

    @property
    def position_rows(self) -> int:
        """Rows of positions that the rotary embedding reads: 3 for M-RoPE, else 1."""
        ...

    @property
    def no_mask(self) -> Any:
        """``attention_mask`` with which the language model builds no mask.

        Packed attention knows itself who attends to whom. Models that take masks by layer type are
        given ``{"full_attention": None}``; others an empty tensor of four dimensions, which
        transformers hands on as it is.
        """
        ...

    def media_inputs(self, media: Sequence[Medium]) -> dict[str, torch.Tensor]:
        """The media arguments of the transformers model's own forward."""
        ...

    def encode(self, tower: Any, media: Sequence[Medium]) -> Sequence[torch.Tensor]:
        """Run the tower on all media at once: ``[tokens, F]`` of each.

        F is the width of the language model, or a multiple of it where features enter several
        layers.
        """
        ...

    def blank_medium(self, tower: Any) -> Medium:
        """The smallest input of the tower."""
        ...

    def language_inputs(
        self, embeddings: torch.Tensor, slots: torch.Tensor, features: torch.Tensor
    ) -> dict[str, Any]:
        """Arguments that give the language model its tokens and vision features.

        Args:
            embeddings: ``[B, T, H]`` of all tokens, placeholders included.
            slots: ``[F]`` int64, the placeholders among the ``B * T`` tokens, ascending.
            features: ``[F, ...]`` from ``encode``, in the precision of the embeddings.
        """
        ...

    def position_ids(self, rope: torch.Tensor, places: torch.Tensor | None = None) -> torch.Tensor:
        """``position_ids`` of the language model.

        Args:
            rope: ``[rows, B, T]`` positions for the rotary embedding.
            places: ``[B, T]`` place of each token in its sequence.
        """
        ...
