"""The environment of processes that decode the files of datasets: a short list, without tokens."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_KEPT = re.compile(
    r"PATH|HOME|TMPDIR|TZ|LANG|LANGUAGE|LC_[A-Z]+|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_PREFIX|"
    r"PYTHON(PATH|HOME|HASHSEED|UNBUFFERED|FAULTHANDLER)|OMP_NUM_THREADS|CUDA_VISIBLE_DEVICES"
)


def media_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What of this process's environment such a process gets."""
    return {name: value for name, value in environment.items() if _KEPT.fullmatch(name)}


def forget_environment() -> None:
    """Drop the rest in this process, once what needs it (the hub's token) is loaded."""
    for name in os.environ.keys() - media_environment(os.environ).keys():
        del os.environ[name]
