"""Print pip's settings as the environment variables of uv, for ``eval`` in a shell.

    python scripts/env/uv_settings.py     # export UV_DEFAULT_INDEX=https://...

uv does not read pip's configuration: without this, a machine with a package mirror of its own
would be asked for the public index. Settings that uv already has in the environment are kept.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from ast import literal_eval

VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
    "no-cache-dir": "UV_NO_CACHE",
}


def main() -> None:
    command = (sys.executable, "-m", "pip", "config", "list")
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for variable, value in uv_variables(listed).items():
        if variable not in os.environ:
            print(f"export {variable}={shlex.quote(value)}")


def uv_variables(listed: str) -> dict[str, str]:
    """uv's variables for what ``pip config list`` printed.

    pip prints ``global.``, then ``install.`` settings of its files and those of the environment as
    ``:env:.``; in pip the environment wins, then the command's own section.
    """
    found: dict[str, tuple[int, str]] = {}
    for section, key, value in re.findall(r"^(:env:|global|install)\.([\w-]+)=(.+)$", listed, re.M):
        rank = ("global", "install", ":env:").index(section)
        if (variable := VARIABLES.get(key)) and rank >= found.get(variable, (0, ""))[0]:
            separator = "," if variable == "UV_FIND_LINKS" else " "
            found[variable] = (rank, separator.join(literal_eval(value).split()))
    return {variable: value for variable, (_, value) in found.items()}


if __name__ == "__main__":
    main()
