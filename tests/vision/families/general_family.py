"""Tiny models that mmr1 does not name, groups for them, and transformers' own plain forward."""

from __future__ import annotations

import copy
import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmr1.trainer.forward.any_model.sharing import settle
from mmr1.trainer.forward.sequences import GroupInput, TokenScores, group_input
from mmr1.types import Completion, MediaRef, Message, Prompt, RolloutGroup, Sample, TextPart
from mmr1.vision.families.loading import load_family
from mmr1.vision.prepare import MediaCache
from tests.vision.families.general_models import FAMILIES, MODELS, SEES_VIDEOS, new_model
from tests.vision.media import encoded, noise, write_video


@dataclass(frozen=True)
class General:
    """A tiny model by its ``model_type``. Everything is made once."""

    name: str

    @functools.cached_property
    def folder(self) -> Path:
        path = Path(tempfile.mkdtemp(prefix="mmr1-general-")) / self.name
        new_model(self.name, path)
        return path

    @functools.cached_property
    def family(self):
        return load_family(str(self.folder))

    @functools.cached_property
    def processor(self):
        return AutoProcessor.from_pretrained(self.folder)

    def model(self, packed: bool = False):
        """With completions that have a prompt each, or the one of their group."""
        model = copy.deepcopy(self._model).eval()
        if packed:
            settle(model, self.family, "packed", self.name)
        return model

    @functools.cached_property
    def _model(self):
        """At initialisation attention hardly matters; larger weights make its errors show."""
        model = AutoModelForImageTextToText.from_pretrained(self.folder, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("q_proj.weight", "k_proj.weight")):
                    parameter.mul_(6)
        return model

    @functools.cached_property
    def video(self) -> MediaRef:
        path = write_video(self.folder / "clip.mp4", frames=20, width=64, height=48, fps=10)
        return MediaRef("video", path, options={"fps": 2.0})

    def groups(self) -> list[RolloutGroup]:
        """Text, an image, two images of different sizes, a video, an image and a video."""
        media: list[tuple[MediaRef, ...]] = [(), (IMAGE,), (IMAGE, SQUARE)]
        if self.name in SEES_VIDEOS:
            media.append((self.video,))
        if self.name in SEES_VIDEOS and self.name != "glm4v":  # which takes one kind at a time
            media.append((IMAGE, self.video))
        return [self.group(refs, seed) for seed, refs in enumerate(media)]

    def group(self, media: tuple[MediaRef, ...], seed: int) -> RolloutGroup:
        """Completions of different lengths, of random tokens."""
        rng = np.random.default_rng(seed)
        lengths = [(3, 7, 1, 12), (5, 9), (4,), (8, 2, 6), (2, 5)][seed % 5]
        content = (*media, TextPart(f"Which digit is number {seed}?"))
        return RolloutGroup(
            self.family.render_prompt(Sample(f"{seed}", (Message("user", content),))),
            tuple(
                Completion(rng.integers(60, 500, n), np.zeros(n, np.float32), "", False, 0)
                for n in lengths
            ),
        )

    def inputs(self, groups: list[RolloutGroup]) -> list[GroupInput]:
        media = MediaCache(self.family.prepare_media)
        return [group_input(self.family, media, group) for group in groups]


GENERAL = {name: General(name) for name in (*MODELS, *FAMILIES)}
IMAGE, SQUARE = (
    MediaRef("image", data=encoded(Image.fromarray(noise(*size)))) for size in ((90, 50), (40, 40))
)


def plain_scores(general: General, model, groups, temperature) -> TokenScores:
    """Each completion alone through the model's own forward, its prompt through the processor."""
    rows = [(g.prompt, torch.tensor(c.token_ids)) for g in groups for c in g.completions]
    logits = [plain_logits(general, model, prompt, row) / temperature for prompt, row in rows]
    return scores_of(general, logits, [row for _, row in rows])


def scores_of(general: General, logits, rows) -> TokenScores:
    """Of rows of tokens, by logits ``[1, T, V]`` of sequences that end with them."""
    logprobs, entropies = [], []
    for of_sequence, row in zip(logits, rows, strict=True):
        of_sequence[..., list(general.family.forbidden_ids)] = -1e4
        distribution = of_sequence[0, -len(row) - 1 : -1].log_softmax(-1)
        logprobs.append(distribution.gather(-1, row[:, None])[:, 0])
        entropies.append(-(distribution.exp() * distribution).sum(-1))
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row)) for row in rows], True).bool()
    empty = torch.zeros(mask.shape)
    return TokenScores(
        empty.masked_scatter(mask, torch.cat(logprobs)),
        empty.masked_scatter(mask, torch.cat(entropies)),
    )


def plain_logits(general: General, model, prompt: Prompt, row: torch.Tensor) -> torch.Tensor:
    """``[1, T, V]``. Gemma 3 and Qwen3.5 have an argument for each token: 0 is text."""
    images = [general.family.decode_media(m) for m in prompt.media if m.kind == "image"]
    videos = [general.family.decode_media(m) for m in prompt.media if m.kind == "video"]
    given = {"images": [images]} if images else {}
    if videos:
        given["videos"] = [[frames for frames, _ in videos]]
        metadata = [[of_video for _, of_video in videos]]
        given["videos_kwargs"] = {"video_metadata": metadata, "do_sample_frames": False}
    batch = general.processor(text=[prompt.text], return_tensors="pt", **given)
    batch["input_ids"] = torch.cat([batch["input_ids"], row[None]], 1)
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    for name in ("token_type_ids", "mm_token_type_ids"):
        if name in batch:
            batch[name] = torch.cat([batch[name], torch.zeros_like(row)[None]], 1)
    return model(**batch, use_cache=False).logits
