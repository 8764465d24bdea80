"""Build a vLLM engine: in a separate process, or in this one if it is an actor on Ray."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from mmr1.config import Config
from mmr1.engines import EngineConfig
from mmr1.rollout.carriers import Carrier, SharedMemoryCarrier, TransferCarrier
from mmr1.rollout.engine_process import EngineProcess
from mmr1.rollout.engines import (
    EngineSetting,
    hands_over_gpu_memory,
    returns_experts,
    transfers_weights,
)
from mmr1.rollout.prefetching import Prefetching
from mmr1.rollout.vllm import VllmEngine
from mmr1.rollout.vllm_adapters import adapter_shape
from mmr1.rollout.vllm_settings import Transfer
from mmr1.rollout.weight_layout import layout_for
from mmr1.types import MediaRef
from mmr1.vision.build import family_of
from mmr1.vision.families.family import is_packed
from mmr1.vision.families.loading import names_in_files, names_of_hub
from mmr1.vision.prepare import Medium

logger = logging.getLogger(__name__)


def build(_: EngineConfig, setting: EngineSetting) -> Prefetching:
    """Build the engine, and what prepares the media of its next requests."""
    config, media = setting.config, setting.media
    engine: VllmEngine | EngineProcess
    if setting.on_ray:
        shared = setting.colocated
        transfer = Transfer(shared, shared, setting.left_out)
        engine = build_vllm_engine(media.__getitem__, config, transfer=transfer)
    else:
        engine = in_process(setting)
    return Prefetching(engine, media, config.full_determinism)


def in_process(setting: EngineSetting) -> EngineProcess:
    """vLLM in a process of its own."""
    config, model = setting.config, setting.model
    assert setting.log is not None, "its process writes somewhere"
    args: tuple[Any, ...]
    carrier: Carrier
    if hands_over_gpu_memory(config) and model is not None:
        args, carrier = (config, None, Transfer(same_gpu=True)), carrier_on_gpu(config)
    else:
        named = model is not None and not is_packed(setting.family)
        args, carrier = (config, names_in_files(model) if named else None), SharedMemoryCarrier()
    process = EngineProcess(
        build_vllm_engine,
        args,
        setting.media.__getitem__,
        log=setting.log,
        threads=config.trainer.threads,
        timeout_s=config.rollout.timeout_s,
        restarts=config.rollout.max_restarts,
        carrier=carrier,
        pixels=getattr(torch, config.rollout_dtype),
        together=config.full_determinism,
    )
    logger.info("vLLM: %s", process.settings)
    return process


def carrier_on_gpu(config: Config) -> TransferCarrier:
    """A carrier between processes on one GPU: not a byte of a weight crosses to main memory."""
    from mmr1.rollout.vllm_transfer import ipc_sender

    return TransferCarrier(partial(ipc_sender, rank=0), layout_for(config), "cuda")


def build_vllm_engine(
    media: Callable[[MediaRef], Medium],
    config: Config,
    names: Mapping[str, str] | None = None,
    transfer: Transfer | None = None,
) -> VllmEngine:
    """The engine in this process, which loads the processor for itself.

    Args:
        media: Gives a medium as it is prepared.
        names: Names of weights, where vLLM knows them by others than transformers does.
        transfer: How weights come by vLLM's own transfer.
    """
    model, family = config.model, family_of(config)
    adapters = adapter_shape(model.lora)
    given = adapters is not None or (transfer is not None and not transfers_weights(config))
    if given and names is None and not is_packed(family):  # by load
        names = names_of_hub(model.path, model.trust_remote_code)
    return VllmEngine(
        model.path,
        config.rollout,
        family,
        media,
        config.rollout_dtype,
        config.seed,
        config.full_determinism,
        model.freeze_vision_tower,
        config.gpu_memory_utilization,
        names,
        transfer,
        adapters,
        model.trust_remote_code,
        returns_experts(config),
        batch_of_engine(config),
    )


def batch_of_engine(config: Config) -> int:
    """The most sequences that training gives an engine at a time; 1 without training."""
    if config.command == "eval":
        return 1
    rollout = config.rollout
    steps = 1 + rollout.max_off_policy_steps if rollout.streams else 1
    return -(-steps * config.data.train_batch_size // config.engines) * rollout.n
