"""How vLLM's workers get weights: what mmr1 adds to them and to vLLM's own transfer, and senders.

vLLM imports this module in each of its workers, as the module of ``worker_extension_cls``; that is
how they know the backend ``tcp``.
"""

from __future__ import annotations

import socket
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer import (
    WeightTransferEngine,
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
from vllm.distributed.weight_transfer.packed_tensor import DEFAULT_PACKED_BUFFER_SIZE_BYTES
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from mmr1.rollout.shared_weights import MappedWeights
from mmr1.rollout.tcp_transfer import (
    CHUNK_BYTES,
    SyncClient,
    TcpReceiver,
    WeightSender,
    WeightSource,
)
from mmr1.rollout.vllm_sleep import blank_scratch
from mmr1.runtime import return_freed_memory


@dataclass
class TcpInitInfo(WeightTransferInitInfo):
    """The arguments of ``TcpReceiver.connect``."""

    host: str
    port: int
    token: str
    timeout_s: float
    chunk_bytes: int


@dataclass
class TcpUpdateInfo(WeightTransferUpdateInfo):
    """The weights of a transfer, in its order."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class TcpWeightTransferEngine(WeightTransferEngine[TcpInitInfo, TcpUpdateInfo]):
    """The backend ``tcp`` in a worker of vLLM."""

    init_info_cls = TcpInitInfo
    update_info_cls = TcpUpdateInfo

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self._receiver = TcpReceiver()

    def init_transfer_engine(self, init_info: TcpInitInfo) -> None:
        self._receiver.connect(**asdict(init_info))

    def start_weight_update(self) -> None:
        if self.device.type == "cpu":
            forget_packed_experts(self.model)
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive weights without vLLM's wait for a device that a CPU backend does not have."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: TcpUpdateInfo) -> None:
        with disable_mtp_completeness_check():
            self._receiver.receive(**asdict(update_info), load=self.model.load_weights)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        self._receiver.close()


WeightTransferEngineFactory.register_engine("tcp", TcpWeightTransferEngine)


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
        workers: Of all engines together.
    """
    info = NCCLTrainerInitInfo(
        master_address=host,
        master_port=_free_port(host),
        world_size=1 + workers,
        packed=True,
        packed_buffer_size_bytes=CHUNK_BYTES,
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
