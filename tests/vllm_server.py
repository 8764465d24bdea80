"""vLLM's own HTTP server on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def vllm_server(model: Path, log: Path, *options: str) -> Iterator[str]:
    """The address of a server of this model, once it answers. ``log`` has what it prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = (
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--max-model-len", "2048", "--enforce-eager", *options),
    )
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_HOST_IP": "127.0.0.1"}
    with (
        log.open("w") as printed,
        subprocess.Popen(command, stdout=printed, stderr=printed, env=environment) as server,
    ):
        try:
            while not _healthy(f"http://127.0.0.1:{port}/health"):
                assert server.poll() is None, log.read_text()[-3000:]
                time.sleep(1)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
