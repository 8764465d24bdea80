"""How vLLM's workers get weights: what mmr1 adds to them, and the senders of vLLM's transfer.

vLLM imports this module in each of its workers, as the module of ``worker_extension_cls``.
"""

from __future__ import annotations

import socket
from math import prod
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
from vllm.distributed.weight_transfer.packed_tensor import DEFAULT_PACKED_BUFFER_SIZE_BYTES
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

from mmr1.rollout.shared_weights import MappedWeights
from mmr1.rollout.transfer import SyncClient, WeightSender, WeightSource
from mmr1.rollout.vllm_sleep import blank_scratch
from mmr1.runtime import return_freed_memory

_NCCL_BUFFER_BYTES = 256 * 2**20


class WorkerExtension:
    """The methods that mmr1 adds to vLLM's workers."""

    def take(self: Any, weights: list[tuple[str, torch.Tensor]], keep_vision: bool) -> None:
        """Load weights.

        The CPU backend packs linear weights as it loads them, so the model's own load_weights
        cannot be called again; reload_weights unpacks, loads and packs. It also drops the encoded
        media.
        """
        features = encoder_outputs(self.model_runner.encoder_cache)
        kept = dict(features) if keep_vision else {}
        if not torch.cuda.is_available():
            forget_packed_experts(self.model_runner.model)
        self.reload_weights(weights_iterator=iter(weights))
        features.update(kept)

    def take_mapped(
        self: Any,
        path: str,
        dtype: str,
        places: dict[str, tuple[int, tuple[int, ...]]],
        keep_vision: bool,
    ) -> None:
        """Load copies of ``MappedWeights``: a CPU model may keep what it is given."""
        mapped = MappedWeights(path, getattr(torch, dtype), places)
        named = [(name, tensor.clone()) for name, tensor in mapped.tensors().items()]
        self.take(named, keep_vision)
        del named, mapped
        return_freed_memory()

    def abandon_weight_update(self: Any) -> None:
        """Drop the rest of a broken transfer.

        vLLM keeps what it has of each layer, and would count it to the next transfer. Layers that
        were begun have undefined weights until then.
        """
        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(self.get_model(), self.model_config)
        self._weight_update_active = False
        self.weight_transfer_engine.shutdown()

    def blank_scratch(self: Any) -> None:
        """Zero scratch tensors after sleep; see ``vllm_sleep.py``."""
        blank_scratch(self.model_runner)


def encoder_outputs(cache: Any) -> dict[str, torch.Tensor]:
    """Encoded media by digest in the cache of a vLLM model runner.

    The first runner, which the CPU backend has, keeps them in a dictionary. The second, which vLLM
    takes on GPUs, has an object with such a dictionary, or None for a text model.
    """
    if cache is None:
        return {}
    return cache if isinstance(cache, dict) else cache.encoder_outputs


def nccl_sender(client: SyncClient, source: WeightSource, host: str, workers: int) -> WeightSender:
    """vLLM's sender by NCCL. The group's rank 0 is this process, on its current GPU.

    Args:
        host: Address of this machine that the engines reach.
        workers: Number of workers of all engines together.
    """
    info = NCCLTrainerInitInfo(
        master_address=host,
        master_port=_free_port(host),
        world_size=1 + workers,
        packed=True,
        packed_buffer_size_bytes=_NCCL_BUFFER_BYTES,
        rank=0,
    )
    sender: WeightSender = WeightTransferTrainerFactory.trainer_init(
        info, client=client, source=source
    )
    return sender


def ipc_sender(client: SyncClient, source: WeightSource, rank: int) -> WeightSender:
    """vLLM's sender to engines on the ranks' own GPUs; all ranks make one and send together."""
    largest = max(m.dtype.itemsize * prod(m.shape) for m in source.metadata())
    info = IPCTrainerInitInfo(
        packed=True,
        packed_buffer_size_bytes=max(largest, DEFAULT_PACKED_BUFFER_SIZE_BYTES),
        rank=rank,
    )
    sender: WeightSender = WeightTransferTrainerFactory.trainer_init(
        info, client=client, source=source
    )
    return sender


def forget_packed_experts(model: Any) -> None:
    """vLLM 0.32 packs the experts' weights for a CPU only where their kernel is new, and would
    write unpacked ones in the place of packed ones.
    """
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port: int = server.getsockname()[1]
        return port
