"""Prepared media on a disk, and what they and vision features depend on.

The key of an entry holds digests of the medium, of the processor and, for features, of the tower;
and of the code that made it, with the versions of the libraries.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch

from mmr1.config import DataConfig
from mmr1.types import DRAWN, MediaRef
from mmr1.vision.disk_cache import DiskCache, bytes_of, key_of
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import Medium, PreparedMedia

logger = logging.getLogger(__name__)

_LIBRARIES = ("av", "numpy", "pillow", "torch", "transformers", "qwen-vl-utils")
_FACTS = ("kind", "merge", "seconds_per_grid", "patch_size", "metadata", "counted")
_TUPLES = ("grid", "times")


def open_disk_cache(data: DataConfig) -> DiskCache | None:
    """The folder of ``data.media_cache``; None without one."""
    if data.media_cache is None:
        return None
    size = int(data.media_cache.size_gib * 1024**3)
    return DiskCache(Path(data.media_cache.dir).expanduser(), size)


def preparer(
    family: ModelFamily, data: DataConfig, disk: DiskCache | None = None
) -> Callable[[MediaRef], Medium]:
    """``family.prepare_media``, which asks the disk first where there is one.

    Args:
        disk: By default that of ``data.media_cache``.
    """
    disk = disk or open_disk_cache(data)
    if disk is None:
        return family.prepare_media
    processor, kept = processor_digest(family), disk

    def prepare(media: MediaRef) -> Medium:
        digest = media.digest()
        if digest.endswith(DRAWN):
            return family.prepare_media(media)
        key = key_of("media", processor, media.kind, digest)
        if (entry := kept.get(key)) is not None:
            tensors, facts = entry
            return _medium(tensors["patches"], json.loads(facts["facts"]), digest)
        prepared = family.prepare_media(media)
        facts = {name: getattr(prepared, name) for name in (*_FACTS, *_TUPLES)}
        kept.put(key, {"patches": prepared.patches}, {"facts": json.dumps(facts)})
        return prepared

    return prepare


def _medium(patches: torch.Tensor, facts: dict[str, Any], digest: str) -> PreparedMedia:
    tuples = {name: tuple(facts[name]) for name in _TUPLES}
    return PreparedMedia(**{**facts, **tuples}, patches=patches, digest=digest)


def processor_digest(family: ModelFamily) -> str:
    """Of all that makes patches of a medium: processor, sizes, decoder, code and libraries."""
    processor = cast(Any, family).processor
    own = [getattr(processor, f"{kind}_processor", None) for kind in ("image", "video")]
    described = [(_source(type(p)), p.to_dict()) for p in own if p is not None]
    sizes = [repr(getattr(family, name, None)) for name in ("images", "videos")]
    return key_of(type(family).__name__, described, sizes, _code())


def tower_digest(tower: torch.nn.Module) -> str:
    """Of a tower's weights and of how it computes. No rank has only a part of a frozen tower."""
    digest = sha256()
    for name, tensor in _weights(tower):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(bytes_of(tensor.detach().cpu()))
    first = next(tower.parameters())
    kernel = getattr(getattr(tower, "config", None), "_attn_implementation", None)
    device = torch.cuda.get_device_name(first.device) if first.is_cuda else first.device.type
    return key_of(digest.hexdigest(), type(tower).__name__, kernel, device, _code())


def _weights(tower: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from tower.named_parameters()
    yield from tower.named_buffers()


@cache
def _code() -> str:
    """A digest of the package's code for media, and the versions of the libraries."""
    digest = sha256(repr([version(name) for name in _LIBRARIES]).encode())
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _source(kind: type) -> str:
    """The code of a processor's class, which may be a model's own; its name where there is none."""
    try:
        return sha256(inspect.getsource(kind).encode()).hexdigest()
    except (OSError, TypeError):
        return kind.__qualname__
