"""Faults that a check of log-probs must see, on a model that SFT has taught to look at pictures.

A random model hardly looks: another picture moves its log-probs by hundredths of a nat, less than
the bounds of bfloat16 allow.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from datasets_prep.generators import make
from mmr1.config import Config, SamplingConfig
from mmr1.data.record import read_records
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.protocol import Request, complete
from mmr1.trainer.forward.sequences import ModelInputs
from mmr1.trainer.models.loading import build_packed_model, load_model
from mmr1.trainer.sampling.parity import logprob_gaps
from mmr1.trainer.sft import run_sft
from mmr1.types import RolloutGroup
from mmr1.vision.build import family_of, media_cache
from mmr1.vision.families.tiny import new_model
from scripts.gpu.figures import Figures, Setting, within

TRAINED = 60  # steps of SFT; a short check takes a third
SEEN = 10
"""So many times the gap of a right engine must a fault's be, to be seen."""


def negative_controls(setting: Setting) -> Figures:
    """Mean gaps in nats: of a right engine, and of ones with a fault, each of which must be larger.

    The faults: the picture of the next prompt, weights of before an update, a layer that was not
    sent.
    """
    config, checkpoint = _taught(setting)
    family = family_of(config)
    media = media_cache(family, config)
    model = load_model(config.model.changed(path=str(checkpoint)))
    samples = read_records(setting.folder / "data/rl.jsonl")[:8]
    sampling = SamplingConfig(max_tokens=8)
    prompts = map(family.render_prompt, samples)
    requests = [Request(prompt, (i, i + 1), sampling) for i, prompt in enumerate(prompts)]
    groups = complete(HfEngine(model, family, media), requests)
    packed = build_packed_model(config, model, ModelInputs(family, media))
    right = _gap(packed.logprobs, groups)
    faults = {
        "swapped picture": _gap(packed.logprobs, _with_next_picture(groups)),
        "stale weights": _gap(_of(packed, _moved(model)).logprobs, groups),
        "a layer that was not sent": _gap(_of(packed, _moved(model, layer=0)).logprobs, groups),
    }
    figures: Figures = {"right": right, **faults}
    bounds = {"right": 1e-3 if setting.on_gpu else 1e-4}
    for name, gap in faults.items():
        figures[f"{name}, right / it"] = right / gap if gap else float("inf")
        bounds[f"{name}, right / it"] = 1 / SEEN
    return within(figures, bounds)


def _taught(setting: Setting) -> tuple[Config, Any]:
    """The small model after SFT on digits."""
    folder = setting.folder
    new_model(folder / "model")
    make("digits", folder / "data", 0)
    config = Config.model_validate(
        {
            "model": {
                "path": str(folder / "model"),
                "dtype": "float32",  # bfloat16 rounds by as much as a fault moves
            },
            "data": {"train": str(folder / "data/sft.jsonl"), "train_batch_size": 32},
            "optimizer": {"lr": 1e-3, "scheduler": {"warmup_steps": 5}},
            "trainer": {
                "max_steps": TRAINED // 3 if setting.short else TRAINED,
                "output_dir": str(folder / "sft"),
                "threads": None if setting.on_gpu else 1,
                "logging_steps": 1000,
            },
        }
    ).for_command("sft")
    return config, run_sft(config)


def _gap(
    logprobs: Callable[[Sequence[RolloutGroup]], torch.Tensor], groups: Sequence[RolloutGroup]
) -> float:
    return float(
        logprob_gaps(groups, logprobs(groups)).sum()
        / sum(len(c.token_ids) for g in groups for c in g.completions)
    )


def _with_next_picture(groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
    """The prompts with the picture of the next one each; all are of one size."""
    following = [*groups[1:], groups[0]]
    return [
        replace(group, prompt=replace(group.prompt, sample=other.prompt.sample))
        for group, other in zip(groups, following, strict=True)
    ]


def _moved(model: Any, layer: int | None = None) -> Any:
    """The model with noise of a tenth of each weight's spread, in all layers or in one."""
    moved = copy.deepcopy(model)
    generator = torch.Generator(model.device).manual_seed(0)
    with torch.no_grad():
        for name, weight in moved.named_parameters():
            if layer is None or f"language_model.layers.{layer}." in name:
                noise = torch.randn(weight.shape, generator=generator, device=weight.device)
                weight += (0.1 * weight.float().std() * noise).to(weight.dtype)
    return moved


def _of(packed: Any, model: Any) -> Any:
    return replace(packed, model=model)
