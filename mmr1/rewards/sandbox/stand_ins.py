"""What libraries open for writing when they are imported, where no file can be opened for writing.

dill tries every mode of ``open`` on the null device and asks for the folder of temporary files,
which Python finds by writing into it; torch imports dill where it is installed. Without these
stand-ins a plugin could not import torch. The filter cannot see a path, so it cannot make an
exception for the null device.
"""

from __future__ import annotations

import builtins
import os
import tempfile
from typing import Any

_STANDARD_OUTPUT = 1  # the null device, in a worker


def provide_stand_ins() -> None:
    """Lend copies of standard output as the null device, and name a folder for temporary files."""
    open_file, open_descriptor = builtins.open, os.open

    def lending_open(file: Any, *args: Any, **keywords: Any) -> Any:
        if file == os.devnull:
            file = os.dup(_STANDARD_OUTPUT)
        return open_file(file, *args, **keywords)

    def lending_descriptor(path: Any, *args: Any, **keywords: Any) -> int:
        if path == os.devnull:
            return os.dup(_STANDARD_OUTPUT)
        return open_descriptor(path, *args, **keywords)

    builtins.open = lending_open
    os.open = lending_descriptor
    tempfile.tempdir = "/tmp"  # nothing can be written into it either
