"""A bounded cache of tensors in a folder, which processes and runs share.

An entry is one safetensors file under the digest of all that it depends on, so it never changes:
what is stale has another name. Writers need no lock: a file appears whole or not at all, and two of
one name are equal.
"""

from __future__ import annotations

import json
import logging
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load, save

from mmr1.files import atomic_binary, is_draft
from mmr1.logs import report_fault

logger = logging.getLogger(__name__)

SUFFIX = ".safetensors"
_SHARD = 2
_LENGTH = 64 + len(SUFFIX)
_ROUNDS = 64
"""The folder is looked through each time that a process has written this part of its size."""
_LEFT = 0.9
"""Share of the size that is left when entries are removed."""
_ABANDONED_S = 3600.0

Entry = tuple[dict[str, torch.Tensor], dict[str, str]]
"""Tensors, and texts about them, by name."""


class DiskCache:
    """Entries by digest; the least recently used go first.

    A process may exceed the size by a 64th before it removes any. Where the folder cannot be
    written, that is said once, and what is there is still read.

    Args:
        folder: Made if need be; others may use it at the same time.
        max_bytes: Of all entries together.

    Attributes:
        hits, misses: How often this process found an entry, and how often not.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._unseen = max_bytes  # bytes written since the folder was looked through
        self._writes = True
        self.hits = self.misses = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_binary(folder / ".writable", sync=False):
                pass
        except OSError as error:
            self._give_up(error)

    def get(self, key: str) -> Entry | None:
        """The entry, or None. A damaged one is removed."""
        path = self._path(key)
        try:
            entry = _read(path.read_bytes())
        except (SafetensorError, ValueError, KeyError) as error:
            logger.warning("%s is damaged (%s) and is made anew", path, error)
            with suppress(OSError):
                path.unlink()
            entry = None
        except OSError:
            entry = None
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        with suppress(OSError):
            os.utime(path)
        return entry

    def put(self, key: str, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, str]) -> None:
        """Keep an entry, where the folder can be written and the entry fits."""
        size = sum(tensor.nbytes for tensor in tensors.values())
        if not self._writes or size > self._max_bytes:
            return
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        data = save(whole, {**facts, "crc": _checksum(whole)})
        try:
            with atomic_binary(self._path(key), sync=False) as (file,):
                file.write(data)
            self._unseen += len(data)
            if self._unseen > self._max_bytes // _ROUNDS:
                self._remove_oldest()
        except OSError as error:
            self._give_up(error)

    def _path(self, key: str) -> Path:
        return self._folder / key[:_SHARD] / f"{key}{SUFFIX}"

    def _remove_oldest(self) -> None:
        """Remove what was not used for longest; nothing while another process does that."""
        self._unseen = 0
        try:
            with FileLock(self._folder / ".lock", timeout=0):
                entries = sorted(self._entries())
                total = sum(size for _, size, _ in entries)
                if total <= self._max_bytes:
                    return
                for _, size, path in entries:
                    with suppress(FileNotFoundError):
                        os.unlink(path)  # noqa: PTH108 - of very many
                    total -= size
                    if total <= self._max_bytes * _LEFT:
                        return
        except Timeout:
            return

    def _entries(self) -> Iterator[tuple[int, int, str]]:
        """Time of use, size and path of each entry; removes drafts that a kill left behind."""
        for shard in os.scandir(self._folder):
            if len(shard.name) != _SHARD or not shard.is_dir():
                continue  # nothing of ours
            for file in os.scandir(shard.path):
                try:
                    facts = file.stat()
                except FileNotFoundError:
                    continue
                if file.name.endswith(SUFFIX) and len(file.name) == _LENGTH:
                    yield facts.st_mtime_ns, facts.st_size, file.path
                elif is_draft(Path(file.path)) and time.time() - facts.st_mtime > _ABANDONED_S:
                    with suppress(OSError):
                        os.unlink(file.path)  # noqa: PTH108

    def _give_up(self, error: OSError) -> None:
        if self._writes:
            self._writes = False
            message = f"data.media_cache.dir '{self._folder}' cannot be written ({error.strerror})"
            report_fault(
                logger, "media/cache_not_written", f"{message}; this process adds nothing to it"
            )


def key_of(*facts: object) -> str:
    """The digest of what an entry depends on, as JSON values."""
    text = json.dumps(facts, sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()


def _read(data: bytes) -> Entry:
    """Raises SafetensorError, ValueError or KeyError where the file is not a whole entry."""
    tensors = load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    facts = header["__metadata__"]
    if facts.pop("crc") != _checksum(tensors):
        raise ValueError("its checksum is another one")
    return tensors, facts


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor in main memory, in the order of its rows."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _checksum(tensors: Mapping[str, torch.Tensor]) -> str:
    crc = 0
    for name in sorted(tensors):
        crc = zlib.crc32(bytes_of(tensors[name]), crc)
    return str(crc)
