"""Values of the types in ``mmr1.types`` as JSON values, for groups that checkpoints keep."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from mmr1 import types

_TAG = "is"  # in every JSON object: what it is made into


def encoded(value: Any) -> Any:
    """Return a value as JSON values. Sequences become lists; all else is read back as it was."""
    match value:
        case np.ndarray():
            data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
            return {_TAG: "array", "type": value.dtype.str, "shape": value.shape, "data": data}
        case bytes():
            return {_TAG: "bytes", "data": base64.b64encode(value).decode()}
        case Path():
            return {_TAG: "path", "path": str(value)}
        case Enum():
            return {_TAG: type(value).__name__, "value": value.value}
        case Mapping():
            return {_TAG: "mapping", "items": [[encoded(k), encoded(v)] for k, v in value.items()]}
        case list() | tuple():
            return [encoded(item) for item in value]
    if is_dataclass(value):
        own = {field.name: encoded(getattr(value, field.name)) for field in fields(value)}
        return {_TAG: type(value).__name__, **own}
    return value


def decoded(value: Any) -> Any:
    """Return the value that ``encoded`` wrote; sequences are tuples."""
    if isinstance(value, list | tuple):
        return tuple(map(decoded, value))
    if not isinstance(value, Mapping):
        return value
    match value[_TAG]:
        case "array":
            data = bytearray(base64.b64decode(value["data"]))  # one that can be written
            return np.frombuffer(data, value["type"]).reshape(value["shape"])
        case "bytes":
            return base64.b64decode(value["data"])
        case "path":
            return Path(value["path"])
        case "mapping":
            return dict(decoded(value["items"]))
        case name:
            own = {key: decoded(item) for key, item in value.items() if key != _TAG}
            return getattr(types, name)(**own)
