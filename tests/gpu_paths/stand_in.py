"""A device that computes shapes only, for models of full size on machines without a GPU.

Tensors on it are torch's fake tensors: they have shapes, strides and types, and no numbers. It
behaves as a GPU does where that matters here: tensors of two devices do not mix, and whoever reads
a number from it, or asks for a shape that depends on numbers, gets an error where a GPU would be
waited for. Tensors in main memory are real.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from transformers import AutoConfig, AutoModelForImageTextToText

from mmr1.trainer.forward.sequences import GroupInput
from mmr1.vision.prepare import Medium
from tests.paths import REPOSITORY


class _Backend:
    """``torch.standin``. Its streams are those of ``torch.cpu``, where everything is in order."""

    available = False  # only in a test that uses it: torch looks for devices on its own

    def is_available(self) -> bool:
        return self.available

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return int(self.available)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


class _Hook(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return BACKEND.available

    def has_primary_context(self, dev_id: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


BACKEND = _Backend()
_setup_privateuseone_for_python_backend("standin", BACKEND, _Hook())
DEVICE = torch.device("standin", 0)
SHAPES = REPOSITORY / "scripts/gpu/shapes"


class StandIn(TorchDispatchMode):
    """Runs what concerns the device on fake tensors, and all else as it is.

    Attributes:
        kernels: How often each varlen kernel was called.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self._fake = FakeTensorMode()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # it works on its shard, which comes here
        kwargs = kwargs or {}
        if not any(map(_is_there, tree_leaves((args, kwargs)))):
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in _KERNELS:
            self.kernels[name] += 1
            _KERNELS[name](*args)
        with self._fake:
            args, kwargs = tree_map(_as_fake, (args, kwargs))
            return func(*args, **kwargs)


def _is_there(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == DEVICE.type
    return isinstance(value, FakeTensor)


def _as_fake(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _check_kernel(tensors: list[torch.Tensor], offsets: list[torch.Tensor]) -> None:
    """What flash attention demands; it would read wrong memory or fail on the GPU."""
    query, key, value = tensors[:3]
    for tensor in (*tensors, *offsets):
        assert tensor.device == DEVICE, tensor.device
    for tensor in tensors:
        assert tensor.stride(-1) == 1, tensor.stride()
        assert tensor.dtype == query.dtype
    assert query.dtype in (torch.float16, torch.bfloat16)
    assert key.shape == value.shape
    assert query.shape[1] % key.shape[1] == 0, "grouped-query attention"
    assert query.shape[2] % 8 == 0
    assert query.shape[2] <= 256
    for ends in offsets:
        assert ends.dtype == torch.int32
        assert ends.is_contiguous()
    assert len(offsets[0]) == len(offsets[1])


def _check_forward(q, k, v, q_ends, k_ends, longest_q, longest_k, *rest: Any) -> None:
    _check_kernel([q, k, v], [q_ends, k_ends])
    assert longest_q >= 2
    assert longest_k >= 1


def _check_backward(grad, q, k, v, out, lse, q_ends, k_ends, longest_q, longest_k, *rest) -> None:
    _check_kernel([q, k, v, grad, out], [q_ends, k_ends])
    assert longest_q >= 2
    assert longest_k >= 1
    assert lse.shape == (q.shape[1], q.shape[0]), "heads by tokens"
    assert lse.dtype == torch.float32
    assert lse.is_contiguous()
    assert rest[2].dtype == torch.uint64  # the generator's state


_KERNELS = {
    "_flash_attention_forward": _check_forward,
    "_flash_attention_backward": _check_backward,
}


def full_size_model(name: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    """A model of a published shape on the device, in training mode."""
    config = AutoConfig.from_pretrained(SHAPES / name)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype)
    model.to_empty(device=DEVICE)
    model.tie_weights()
    return model.train()


def group(
    completions: list[int], image: tuple[int, int, int] | None = None, text: int = 100
) -> GroupInput:
    """A prompt with ``text`` tokens around an image or video of this grid of patches."""
    media: tuple[Medium, ...] = ()
    ids = [1] * text
    if image is not None:
        t, h, w = image
        pixels = torch.zeros(t * h * w, 1176)
        kind = "image" if t == 1 else "video"
        media = (Medium(kind, pixels, image, 2, None, f"{image} {completions}"),)
        token = 151655 if t == 1 else 151656
        ids[text // 2 : text // 2] = [token] * media[0].tokens
    positions = torch.arange(len(ids)).expand(3, -1).contiguous()
    rows = tuple(torch.randint(0, 1000, (length,)) for length in completions)
    return GroupInput(torch.tensor(ids), positions, len(ids), media, rows)
