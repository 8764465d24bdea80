"""A judge behind vLLM's own server: a tiny model that is held to the form of a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from mmr1.types import MediaRef
from tests.rewards.judges.judges import item, judge
from tests.vllm_server import vllm_server

pytest.importorskip("vllm", reason="vLLM is not installed")


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "log"
    with vllm_server(tiny_model, log, "--served-model-name", "tiny") as url:
        yield f"{url}/v1"


@pytest.mark.slow
@pytest.mark.vllm
def test_a_vllm_server_judges(server: str, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (56, 56), "red").save(path)
    form = {"structured_outputs": {"regex": r'\{"score": [0-9]\}'}}
    items = [item("four"), item("five", MediaRef("image", path))]
    options = {"model": "tiny", "scale": (0, 9), "extra": form, "temperature": 1.0}
    rewards = judge(server, items, timeout_s=120.0, **options)
    for reward in rewards:
        assert reward.error is None
        assert 0 <= reward.value <= 1
        assert reward.components["liked/completion_tokens"] > 0
    text, picture = (reward.components["liked/prompt_tokens"] for reward in rewards)
    assert picture == text + 4 + 2  # 2 x 2 merged patches between their two marks


@pytest.mark.slow
@pytest.mark.vllm
def test_its_errors_are_told(server: str) -> None:
    (reward,) = judge(server, [item("a")], timeout_s=60.0, model="other")
    assert reward.value is None
    assert "HTTP 404" in str(reward.error)
