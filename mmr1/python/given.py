"""What was given in Python, as files: a run reads, repeats and resumes these as any others.

OUTPUT/given/DIGEST/NAME.jsonl  rows, their pictures in base64
OUTPUT/given/DIGEST/NAME        a ``datasets.Dataset``
OUTPUT/given/model              a model and its processor
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mmr1.files import atomic


def data_path(data: Any, folder: Path, name: str) -> str:
    """What ``data.train`` and ``eval.data`` name: a path or a name as it is, or a file of rows.

    Raises:
        ValueError: It is neither, or a row holds what no file can.
    """
    if isinstance(data, str | Path):
        return str(data)
    if hasattr(data, "save_to_disk") and isinstance(data, Mapping):
        raise ValueError(f"data is a dataset with the splits {', '.join(data)}; give one of them")
    if hasattr(data, "save_to_disk"):  # its media stay encoded
        saved = folder / data._fingerprint / name
        if not saved.exists():
            data.save_to_disk(saved)
        return str(saved)
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise ValueError(
            f"data is a {type(data).__name__}; give a path, a list of rows or a datasets.Dataset"
        )
    text = "".join(f"{_json(row, number)}\n" for number, row in enumerate(data))
    # Named by the content, so that other rows cannot take their place in a run that is resumed.
    path = folder / hashlib.sha256(text.encode()).hexdigest()[:8] / f"{name}.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as file:
            file.write(text)
    return str(path)


def _json(row: Any, number: int) -> str:
    if not isinstance(row, Mapping):
        raise ValueError(f"data[{number}] is a {type(row).__name__}; a row is a dict")
    try:
        return json.dumps(row, default=_plain, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"data[{number}]: {error}") from error


def _plain(value: Any) -> Any:
    """Pictures and bytes as ``data:`` URLs, paths as texts, numbers of numpy as numbers."""
    if hasattr(value, "save") and hasattr(value, "mode"):
        return _data_url(_png(value), "image/png")
    if isinstance(value, bytes | bytearray):
        return _data_url(bytes(value), "application/octet-stream")
    if isinstance(value, Path):
        return str(value.resolve())
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be written into a file of rows")


def _png(picture: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def _data_url(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def write_model(model: Any, processor: Any, folder: Path) -> None:
    """A transformers model and its processor, as a model directory."""
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
