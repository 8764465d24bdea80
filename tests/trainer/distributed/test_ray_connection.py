"""The connection to Ray: who can reach a local cluster, and who is let in."""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from mmr1.config import Config, RolloutConfig
from mmr1.trainer.distributed.cluster import _placement, on_ray, places_of, workers
from mmr1.trainer.distributed.ray_connection import join_cluster, start_local_cluster
from mmr1.trainer.distributed.ray_policy import RayReference
from mmr1.trainer.models.training_models import build_training_models

ray = pytest.importorskip("ray", reason="Ray is not installed")

JOIN = """
import sys, ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
print("joined", len(ray.nodes()))
"""


def listening() -> list[tuple[str, str]]:
    """Name and address of every socket on which this process or one it started listens."""
    this = psutil.Process()
    return [
        (process.name(), connection.laddr.ip)
        for process in [this, *this.children(recursive=True)]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]


def elsewhere() -> list[tuple[str, str]]:
    """Those that other machines can reach."""
    reachable = []
    for name, ip in listening():
        address = ipaddress.ip_address(ip)
        mapped = getattr(address, "ipv4_mapped", None)
        if not (mapped or address).is_loopback:
            reachable.append((name, ip))
    return reachable


def join_from_another_process(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    without = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # else Ray replaces 127.0.0.1
    return subprocess.run(
        [sys.executable, "-c", JOIN, ray.get_runtime_context().gcs_address],
        env=without | loopback | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_a_local_cluster_listens_on_loopback_and_asks_for_its_token(
    tiny_model, tmp_path, monkeypatch
):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # ours is never without
    config = Config.model_validate(
        {
            "model": {"path": str(tiny_model), "dtype": "float32"},
            "rollout": {"engine": "hf", "max_prompt_length": 64, "max_response_length": 32},
            "resources": {"ranks": 2},
            "trainer": {"output_dir": str(tmp_path), "threads": 1},
        }
    )
    before = elsewhere()
    with on_ray(config):
        names = " ".join(name for name, _ in listening())
        assert all(part in names for part in ("gcs_server", "raylet", "Rank", "Engine"))
        assert [entry for entry in elsewhere() if entry not in before] == []

        token = os.environ["RAY_AUTH_TOKEN"]
        trusted = join_from_another_process({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token})
        assert "joined 1" in trusted.stdout, trusted.stderr
        stranger = join_from_another_process({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64})
        assert stranger.returncode != 0
        assert "joined" not in stranger.stdout


@pytest.mark.slow
def test_ranks_of_a_cluster_have_the_key_of_a_served_reference_and_nothing_writes_it(
    parts, tiny_model, tmp_path, monkeypatch, capfd
):
    """The machine's own part of the cluster was started without it."""
    key = "key-0123456789-of-the-server"
    asked: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(self.headers["Authorization"])
            self.send_error(403)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    config = Config.model_validate(
        {
            "model": {"path": str(tiny_model), "dtype": "float32"},
            "algorithm": {"kl": {"coef": 0.1, "reference": {"type": "server", "url": url}}},
            "rollout": {"engine": "hf", "max_prompt_length": 64, "max_response_length": 32},
            "trainer": {"output_dir": str(tmp_path), "threads": 1},
        }
    )
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    start_local_cluster(1)
    try:
        monkeypatch.setenv("VLLM_API_KEY", key)
        with workers(config, 1, 0, build_training_models) as (ranks, _):
            with pytest.raises(Exception, match="403"):
                RayReference(ranks.part(lambda m: m.reference)).logprobs([parts[3][0].group])
            logs = Path(ray._private.worker.global_worker.node.get_session_dir_path())
    finally:
        ray.shutdown()
        server.shutdown()
        server.server_close()
    assert set(asked) == {f"Bearer {key}"}
    files = [path for top in (logs, tmp_path) for path in top.rglob("*") if path.is_file()]
    assert any("worker" in path.name for path in files)
    assert not [path for path in files if key.encode() in path.read_bytes()]
    assert key not in "".join(capfd.readouterr())


def test_a_cluster_that_is_not_there_is_one_line_with_the_remedy():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(ValueError, match=r"resources\.ray\.address=.*RAY_AUTH_MODE=token"):
            join_cluster(f"127.0.0.1:{port}")


def test_a_ray_that_does_not_keep_to_loopback_is_refused(monkeypatch):
    monkeypatch.setattr(ray, "init", lambda **options: None)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.7")
    with pytest.raises(ValueError, match=r"listens on 192\.0\.2\.7"):
        start_local_cluster(1)


@pytest.mark.parametrize(
    ("engine", "keys"),
    [
        ({"tensor_parallel_size": 2}, r"rollout\.engine\.tensor_parallel_size=2"),
        (
            {"engine_kwargs": {"pipeline_parallel_size": 2}},
            r"rollout\.engine\.engine_kwargs\.pipeline_parallel_size=2",
        ),
    ],
)
def test_engines_of_several_gpus_on_a_cluster_without_any_are_refused(monkeypatch, engine, keys):
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0})
    with pytest.raises(ValueError, match=f"^{keys}, and the Ray cluster has no GPU"):
        _placement(places_of(RolloutConfig(engine=engine), 2, 1), 60, [])
