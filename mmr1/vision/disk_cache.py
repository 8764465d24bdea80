"""Prepared media in a bounded folder, which processes and runs share.

An entry is one file of NumPy's, a zip with checksums. Its name is the digest of all that it depends
on: the medium, the processor, the code that made it and the versions of the libraries. So it never
changes: what is stale has another name. Writers need no lock: a file appears whole or not at all,
and two of one name are equal.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from mmr1.config import DataConfig
from mmr1.files import atomic_binary, is_draft
from mmr1.logs import report_fault
from mmr1.types import DRAWN, MediaRef
from mmr1.vision.families.family import ModelFamily
from mmr1.vision.prepare import Medium

logger = logging.getLogger(__name__)

SUFFIX = ".npz"
_LENGTH = 64 + len(SUFFIX)
_ROUNDS = 64
"""The folder is looked through each time that a process has written this part of its size."""
_LEFT = 0.9
"""Share of the size that is left when entries are removed."""
_LIBRARIES = ("av", "numpy", "pillow", "torch", "transformers", "qwen-vl-utils")
_NOT_FACTS = ("stored", "digest", "prepared", "prefetch")
_FACTS = [field.name for field in fields(Medium) if field.name not in _NOT_FACTS]


def preparer(family: ModelFamily, data: DataConfig) -> Callable[[MediaRef], Medium]:
    """``family.prepare_media``, which asks the folder of ``data.media_cache`` first, if any."""
    if data.media_cache is None:
        return family.prepare_media
    size = int(data.media_cache.size_gib * 1024**3)
    kept = DiskCache(Path(data.media_cache.dir).expanduser(), size)
    processor = processor_digest(family)

    def prepare(media: MediaRef) -> Medium:
        digest = media.digest()
        if digest.endswith(DRAWN):
            return family.prepare_media(media)
        key = _key_of(processor, media.kind, digest)
        if (entry := kept.get(key)) is not None:
            patches, facts = entry
            facts |= {name: tuple(facts[name]) for name in ("grid", "times")}
            return Medium(**facts, stored=patches, digest=digest)
        prepared = family.prepare_media(media)
        kept.put(key, prepared.patches, {name: getattr(prepared, name) for name in _FACTS})
        return prepared

    return prepare


class DiskCache:
    """Tensors and facts about them, by digest; the least recently used go first.

    A process may exceed the size by a 64th before it removes any. Where the folder cannot be
    written, that is said once, and what is there is still read.

    Args:
        folder: Made if need be; others may use it at the same time.
        max_bytes: Of all entries together.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._unseen = max_bytes  # bytes written since the folder was looked through
        self._writes = True

    def get(self, key: str) -> tuple[torch.Tensor, dict[str, Any]] | None:
        """The entry, or None, as of a damaged one, which is then put anew."""
        path = self._path(key)
        try:
            with np.load(path) as entry:
                tensor, facts = torch.from_numpy(entry["tensor"]), json.loads(str(entry["facts"]))
        except FileNotFoundError:
            return None
        except Exception as error:  # by the bytes that are damaged, zipfile raises one of a dozen
            logger.warning("%s cannot be read (%s) and is made anew", path, error)
            return None
        with suppress(OSError):  # another user's
            os.utime(path)
        return tensor, facts

    def put(self, key: str, tensor: torch.Tensor, facts: dict[str, Any]) -> None:
        """Keep an entry, where the folder can be written and the entry fits."""
        if not self._writes or tensor.nbytes > self._max_bytes:
            return
        try:
            with atomic_binary(self._path(key), sync=False) as (file,):
                np.savez(file, tensor=tensor.numpy(), facts=json.dumps(facts))
                self._unseen += file.tell()
            if self._unseen > self._max_bytes // _ROUNDS:
                self._remove_oldest()
        except OSError as error:
            self._writes = False
            message = f"data.media_cache.dir '{self._folder}' cannot be written ({error.strerror})"
            report_fault(
                logger, "media/cache_not_written", f"{message}; this process adds nothing to it"
            )

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}{SUFFIX}"

    def _remove_oldest(self) -> None:
        """Remove what was not used for longest. Processes that do it at once remove the same."""
        self._unseen = 0
        entries = sorted(self._entries(), reverse=True)
        total = sum(size for _, size, _ in entries)
        least = self._max_bytes * (_LEFT if total > self._max_bytes else 1)
        while total > least:
            _, size, path = entries.pop()
            Path(path).unlink(missing_ok=True)
            total -= size

    def _entries(self) -> Iterator[tuple[int, int, str]]:
        """Time of use, size and path of each entry, and of drafts that a kill left behind."""
        for shard in self._folder.glob("??/"):
            for file in os.scandir(shard):
                entry = file.name.endswith(SUFFIX) and len(file.name) == _LENGTH
                if entry or is_draft(Path(file.path)):
                    with suppress(FileNotFoundError):  # another process removed it
                        facts = file.stat()
                        yield facts.st_mtime_ns, facts.st_size, file.path


def _key_of(*facts: object) -> str:
    """The digest of what an entry depends on, as JSON values."""
    return sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def processor_digest(family: ModelFamily) -> str:
    """Of all that makes patches of a medium: processor, sizes, decoder, code and libraries."""
    processor = cast(Any, family).processor
    own = [getattr(processor, f"{kind}_processor", None) for kind in ("image", "video")]
    # The code of a processor's class may be the model's own.
    described = [(inspect.getsource(type(p)), p.to_dict()) for p in own if p is not None]
    sizes = [repr(getattr(family, name, None)) for name in ("images", "videos")]
    return _key_of(type(family).__name__, described, sizes, _code())


@cache
def _code() -> str:
    """A digest of the package's code for media, and the versions of the libraries."""
    digest = sha256(repr([version(name) for name in _LIBRARIES]).encode())
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
