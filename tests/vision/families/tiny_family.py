"""A tiny model of any family, ragged groups for it, and transformers' own plain forward."""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmr1.trainer.forward.any_model.sharing import settle
from mmr1.trainer.forward.logprob_head import FORBIDDEN
from mmr1.trainer.forward.sequences import GroupInput, TokenScores, completion_batch
from mmr1.types import MediaRef
from mmr1.vision.families import tiny
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.families.loading import architecture_named, load_family, unwrapped
from mmr1.vision.prepare import Medium
from tests.vision.media import encoded, noise, write_video

TEXT = ("qwen2", "qwen3", "llama")
VISION = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")


@dataclass(frozen=True)
class TinyFamily:
    """By the ``model_type``. Everything is made once."""

    name: str

    @property
    def sees(self) -> bool:
        return self.name not in TEXT

    @functools.cached_property
    def folder(self) -> Path:
        path = Path(tempfile.mkdtemp(prefix="mmr1-family-")) / self.name
        tiny.new_model(path, family=self.name)
        return path

    @functools.cached_property
    def family(self) -> ModelFamily:
        return load_family(str(self.folder))

    def model(self) -> Any:
        """Text models with the packed forward of any model, the others with their family's."""
        model = copy.deepcopy(self._model).eval()
        if not self.sees:
            settle(model, self.family, "packed", self.name)
        return model

    @functools.cached_property
    def _model(self) -> Any:
        """At initialisation attention hardly matters; larger weights make its errors show."""
        auto_class = architecture_named(self.name).auto_class
        model = auto_class.from_pretrained(self.folder, dtype=torch.float32)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("q_proj.weight", "k_proj.weight", "qkv.weight")):
                    parameter.mul_(6)
                if name.endswith("bias") or parameter.dim() == 1:
                    parameter += torch.randn(parameter.shape, generator=generator) * 0.1
        return model

    @functools.cache  # noqa: B019 (the families are module constants)
    def image(self, width: int, height: int, seed: int = 0) -> Medium:
        picture = encoded(Image.fromarray(noise(width, height, seed)))
        return self.family.prepare_media(MediaRef("image", data=picture))

    @functools.cache  # noqa: B019
    def video(self, frames: int, width: int, height: int, fps: float = 2.0) -> Medium:
        path = self.folder / f"{frames}-{width}-{height}-{fps}.mp4"
        write_video(path, frames, width, height, fps=10)
        return self.family.prepare_media(
            MediaRef("video", path, options={"fps": fps, "min_pixels": 3136})
        )

    def group(
        self, media: Sequence[Medium], text: int, completions: Sequence[int], seed: int
    ) -> GroupInput:
        """Random ids: ``text`` prompt tokens around the media, completions of the given lengths."""
        rng = np.random.default_rng(seed)
        kinds = {kind: token for token, kind in self.family.placeholder_kinds.items()}
        ids = rng.integers(20, 600, text).tolist()
        places = sorted(rng.integers(0, text, len(media)).tolist())
        for place, medium in reversed(list(zip(places, media, strict=True))):
            ids[place:place] = self.surrounded(kinds[medium.kind])
        positions, start = torch.arange(text)[None], text
        if self.sees:
            ids = self.family.expand_placeholders(ids, media)
            positions = self.family.prompt_positions(ids, media)
            start = self.family.completion_start(positions)
        return GroupInput(
            prompt_ids=torch.tensor(ids),
            prompt_positions=positions,
            completion_start=start,
            media=tuple(media),
            completions=tuple(torch.tensor(rng.integers(20, 600, n)) for n in completions),
        )

    def surrounded(self, placeholder: int) -> list[int]:
        """The placeholder as the chat template writes it."""
        names = ("<|vision_start|>", "<|vision_end|>")
        before, after = self.family.tokenizer.convert_tokens_to_ids(list(names))
        return [before, placeholder, after]


FAMILIES = {name: TinyFamily(name) for name in (*TEXT, *VISION)}


def plain_scores(
    model: Any,
    groups: Sequence[GroupInput],
    temperature: float,
    forbidden_ids: Sequence[int] = (),
) -> TokenScores:
    """Each completion alone through the model's public forward, which finds its own positions."""
    logprobs, entropies = [], []
    for one in (replace(g, completions=(row,)) for g in groups for row in g.completions):
        logits = plain_logits(model, one)[:, len(one.prompt_ids) - 1 : -1] / temperature
        logits[..., list(forbidden_ids)] = FORBIDDEN
        distribution = logits[0].log_softmax(-1)
        logprobs.append(distribution.gather(-1, one.completions[0][:, None])[:, 0])
        entropies.append(-(distribution.exp() * distribution).sum(-1))
    _, mask = completion_batch(groups)
    empty = torch.zeros(mask.shape)
    return TokenScores(
        empty.masked_scatter(mask, torch.cat(logprobs)),
        empty.masked_scatter(mask, torch.cat(entropies)),
    )


def plain_logits(model: Any, one: GroupInput) -> torch.Tensor:
    """``[1, T, V]``; ids, patches and grids go in, and positions only where see below."""
    ids = torch.cat([one.prompt_ids, one.completions[0]])[None]
    inputs: dict[str, torch.Tensor] = {}
    config = unwrapped(model).config
    if hasattr(config, "vision_config"):
        of_kind = torch.zeros_like(ids)
        of_kind[ids == config.image_token_id] = 1
        of_kind[ids == config.video_token_id] = 2
        inputs["mm_token_type_ids"] = of_kind
    for kind, suffix in (("image", ""), ("video", "_videos")):
        if media := [m for m in one.media if m.kind == kind]:
            inputs[f"pixel_values{suffix}"] = torch.cat([m.patches for m in media])
            inputs[f"{kind}_grid_thw"] = torch.tensor([m.grid for m in media])
    if config.model_type == "qwen2_5_vl" and any(lasts_longer_than_wide(m) for m in one.media):
        positions = torch.cat([one.prompt_positions, one.completion_positions(0)], dim=1)
        inputs["position_ids"] = positions[:, None]
    seconds = [m.seconds_per_grid for m in one.media if m.seconds_per_grid is not None]
    if seconds:
        inputs["second_per_grid_ts"] = torch.tensor(seconds)
    return model(
        input_ids=ids, attention_mask=torch.ones_like(ids), **inputs, use_cache=False
    ).logits


def lasts_longer_than_wide(medium: Medium) -> bool:
    """Then transformers' own positions of Qwen2.5-VL are not those of its release: see mrope.py."""
    return medium.kind == "video" and medium.grid[0] * 4 > max(medium.grid[1:]) // medium.merge
