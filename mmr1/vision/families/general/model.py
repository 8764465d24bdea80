"""Models without a family here, by what transformers itself knows of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from mmr1.vision.families.chat import ChatOptions
from mmr1.vision.families.family import (
    ModelFamily,
    ModelParts,
    ModelShape,
    StackShape,
    decoder_shape,
)
from mmr1.vision.families.general import inputs


@dataclass(frozen=True, slots=True)
class GeneralArchitecture:
    """The architecture of any model; an ``Architecture``.

    Attributes:
        presets, make: Presets and maker of small models: see ``new_model``.
        reads_text: The models see nothing.
        normed_heads: See ``StackShape``.
    """

    presets: Sequence[str] = ()
    make: Callable[[Path, str, int, Sequence[str] | None], int] | None = None
    reads_text: bool = False
    normed_heads: bool = False

    shares_prompts = False

    @property
    def auto_class(self) -> Any:
        return AutoModelForCausalLM if self.reads_text else AutoModelForImageTextToText

    def load_family(
        self,
        path: str,
        config: Any,
        chat: ChatOptions,
        trust_remote_code: bool,
        **media_options: float | str,
    ) -> ModelFamily:
        recurrent = not inputs.ATTENTIONS.issuperset(inputs.layer_types(config))
        takes = None
        if not self.reads_text:
            takes = frozenset(inspect.signature(_model_class(path, config).forward).parameters)
        return inputs.load_family(
            path, config, takes, recurrent, chat, trust_remote_code, **media_options
        )

    def shape(self, config: Any) -> ModelShape:
        language = decoder_shape(config.get_text_config(), self.normed_heads)
        return ModelShape(language, tower_shape(config))

    def parts(self, model: Any) -> ModelParts:
        """The parts, by the names that transformers looks for in any model."""
        decoder, tower = model.get_decoder(), model.get_encoder(modality="image")
        return ModelParts(
            language_model=decoder,
            layers=_layers(decoder),
            embed_tokens=model.get_input_embeddings(),
            lm_head=model.get_output_embeddings(),
            tower=None if tower is model or tower is model.base_model else tower,
            tower_blocks=(),
            tower_mergers=(),
            placeholder_ids=(),
        )

    def in_files(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        return weight

    def new_model(
        self, output: Path, preset: str, seed: int, corpus: Sequence[str] | None = None
    ) -> int:
        assert self.make is not None, "there are no presets"
        return self.make(output, preset, seed, corpus)


def _model_class(path: str, config: Any) -> Any:
    known = AutoModelForImageTextToText._model_mapping
    if (code := (getattr(config, "auto_map", None) or {}).get("AutoModelForImageTextToText")) and (
        type(config).__module__.startswith("transformers_modules.")
    ):  # it is trusted: the configuration's own code has been run
        return get_class_from_dynamic_module(code, path)
    if type(config) not in known:
        raise ValueError(
            f"model.path '{path}' is a '{config.model_type}' model, which transformers' "
            "AutoModelForImageTextToText does not load (docs/models.md)"
        )
    return known[type(config)]


def _layers(decoder: torch.nn.Module) -> Sequence[torch.nn.Module]:
    """Return the layers, which most decoders name ``layers``, and some otherwise."""
    lists = [m for m in decoder.children() if isinstance(m, torch.nn.ModuleList)]
    named: Sequence[torch.nn.Module] | None = getattr(decoder, "layers", None)
    return named if named is not None else [*lists[0]] if lists else ()


def tower_shape(config: Any, gated: bool = False) -> StackShape | None:
    """The shape of a vision transformer, by the names that most configurations use.

    Args:
        gated: Its MLPs have gates, and its norms are RMSNorm.
    """
    vision = getattr(config, "vision_config", None)
    if vision is None:
        return None
    hidden = _first(vision, "embed_dim", "hidden_size")  # the latter is Qwen2-VL's language model's
    wide = getattr(vision, "intermediate_size", None) or int(hidden * vision.mlp_ratio)
    return StackShape(
        layers=_first(vision, "num_hidden_layers", "depth"),
        hidden=hidden,
        intermediate=wide,
        queries=hidden,
        keys=hidden,
        heads=_first(vision, "num_attention_heads", "num_heads"),
        gated=gated,
        layer_norm=not gated,
        rows_per_token=_rows_per_token(config, vision),
    )


def _rows_per_token(config: Any, vision: Any) -> int:
    """Patches per token, by the names of mergers in the configuration; 1 where none is known."""
    if merge := getattr(vision, "spatial_merge_size", None) or getattr(
        config, "scale_factor", None
    ):
        return int(merge) ** 2
    if ratio := getattr(config, "downsample_ratio", None):
        return round(1 / ratio**2)
    if tokens := getattr(config, "mm_tokens_per_image", None):
        return int((vision.image_size // vision.patch_size) ** 2 // tokens)
    return 1


def _first(config: Any, *names: str) -> int:
    return next(int(getattr(config, name)) for name in names if hasattr(config, name))


GENERAL = GeneralArchitecture()
GENERAL_TEXT = GeneralArchitecture(reads_text=True)
