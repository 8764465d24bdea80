"""A judge behind vLLM's own server: a tiny model that is held to the form of a verdict."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from mmr1.types import MediaRef
from tests.rewards.judges.test_judge import item, judge

pytest.importorskip("vllm", reason="vLLM is not installed")


@pytest.fixture(scope="module")
def vllm_server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (tmp_path_factory.mktemp("server") / "log").open("w+")
    command = (
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(tiny_model)),
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny"),
        *("--dtype", "float32", "--max-model-len", "2048", "--enforce-eager"),
    )
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_HOST_IP": "127.0.0.1"}
    with subprocess.Popen(command, stdout=log, stderr=log, env=environment) as server:
        try:
            while not _healthy(f"http://127.0.0.1:{port}/health"):
                log.seek(0)
                assert server.poll() is None, log.read()[-3000:]
                time.sleep(1)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.vllm
def test_a_vllm_server_judges(vllm_server: str, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (56, 56), "red").save(path)
    form = {"structured_outputs": {"regex": r'\{"score": [0-9]\}'}}
    items = [item("four"), item("five", MediaRef("image", path))]
    options = {"model": "tiny", "scale": (0, 9), "extra": form, "temperature": 1.0}
    rewards = judge(vllm_server, items, timeout_s=120.0, **options)
    for reward in rewards:
        assert reward.error is None
        assert 0 <= reward.value <= 1
        assert reward.components["liked/completion_tokens"] > 0
    text, picture = (reward.components["liked/prompt_tokens"] for reward in rewards)
    assert picture == text + 4 + 2  # 2 x 2 merged patches between their two marks


@pytest.mark.slow
@pytest.mark.vllm
def test_its_errors_are_told(vllm_server: str) -> None:
    (reward,) = judge(vllm_server, [item("a")], timeout_s=60.0, model="other")
    assert reward.value is None
    assert "HTTP 404" in str(reward.error)
