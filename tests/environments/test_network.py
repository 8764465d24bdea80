"""Tools behind walls that ask servers: ``environment.sandbox.network``."""

from __future__ import annotations

import http.server
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mmr1.config import ToolsConfig
from mmr1.environments.environment import Action
from mmr1.environments.tools import ToolEnvironment
from mmr1.types import Sample

OWN = str(Path(__file__).with_name("tools.py"))


class _Pages(http.server.BaseHTTPRequestHandler):
    """Answers each path with itself; /slow after a while, /away with the place that it names."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        if self.path.startswith("/slow"):
            time.sleep(30)
        self.send_response(302 if self.path.startswith("/away") else 200)
        if self.path.startswith("/away"):
            self.send_header("Location", self.path.partition("?")[2])
        self.end_headers()
        self.wfile.write(f"page {self.path}".encode())

    def log_message(self, *args: object) -> None:
        """Nothing."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str) -> None:
        self.asked: list[str] = []
        super().__init__((host, 0), _Pages)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]}:{self.port}"


@contextmanager
def serving(host: str) -> Iterator[_Server]:
    server = _Server(host)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def server() -> Iterator[_Server]:
    with serving("127.0.0.1") as here:
        yield here


@pytest.fixture(scope="module")
def other() -> Iterator[_Server]:
    with serving("127.0.0.1") as here:
        yield here


@pytest.fixture(scope="module")
def beyond() -> Iterator[_Server]:
    """A server at this machine's address in a network, which is not its loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.254", 9))
            address = asked.getsockname()[0]
        except OSError:
            address = "127.0.0.1"
    if address.startswith("127."):
        pytest.skip("this machine has no address in a network")
    with serving(address) as there:
        yield there


@contextmanager
def tools(network, *names: str, **keys) -> Iterator[ToolEnvironment]:
    specs = tuple(f"{OWN}:{name}" for name in names or ("fetch",))
    sandbox = None if network is None else {"network": network}
    keys = {"workers": 1, "timeout_s": 5, "sandbox": sandbox, "tools": (*specs, "python"), **keys}
    environment = ToolEnvironment(ToolsConfig(**keys))
    try:
        yield environment
    finally:
        environment.close()


def call(environment: ToolEnvironment, name: str, **arguments) -> str:
    turn = f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
    answer = environment.episode(Sample("1", ())).step(Action(turn, (), False))
    ((part,),) = (message.parts for message in answer.messages)
    return part.text


def test_without_a_network_nothing_is_reached_and_the_key_is_named(server):
    with tools("none", "fetch", "dial") as environment:
        for host in (server.url, "http://example.org"):
            told = call(environment, "fetch", url=f"{host}/none")
            assert "no network; list the host in environment.sandbox.network" in told
        assert call(environment, "dial", port=server.port) == "-1"  # by the system call itself
    assert "/none" not in server.asked


def test_loopback_reaches_this_machine_and_nothing_beyond(server, other, beyond):
    with tools("loopback") as environment:
        assert call(environment, "fetch", url=f"{server.url}/a") == "page /a"
        assert call(environment, "fetch", url=f"http://localhost:{other.port}/b") == "page /b"
        # The server beyond is there for a tool that is not in the sandbox.
        with tools(None) as open_environment:
            assert call(open_environment, "fetch", url=f"{beyond.url}/seen") == "page /seen"
        told = call(environment, "fetch", url=f"{beyond.url}/refused")
        address = beyond.url.removeprefix("http://")
        assert f"the sandbox reaches no {address}; list it in environment.sandbox.network" in told
        assert "reaches no example.org:80" in call(environment, "fetch", url="http://example.org")
        told = call(environment, "fetch", url=f"{server.url}/away?{beyond.url}/redirected")
        assert f"reaches no {address}" in told
    assert beyond.asked == ["/seen"]


def test_a_list_reaches_only_its_hosts_and_ports(server, other, beyond):
    address = beyond.url.removeprefix("http://")
    with tools([f"127.0.0.1:{server.port}", address]) as environment:
        assert call(environment, "fetch", url=f"{server.url}/c") == "page /c"
        assert call(environment, "fetch", url=f"http://localhost:{server.port}/d") == "page /d"
        assert call(environment, "fetch", url=f"{beyond.url}/e") == "page /e"
        told = call(environment, "fetch", url=f"{other.url}/f")
        assert f"reaches no 127.0.0.1:{other.port}" in told
    assert "/f" not in other.asked


def test_a_server_that_does_not_answer_costs_its_call_alone(server):
    with tools("loopback", timeout_s=1) as environment:
        told = call(environment, "fetch", url=f"{server.url}/slow")
        assert told == "Error: no answer in 1 s"
        assert call(environment, "fetch", url=f"{server.url}/g") == "page /g"


def test_the_policys_own_code_has_no_network(server):
    code = "import ctypes\nprint(ctypes.CDLL(None).socket(2, 1, 0))"
    with tools("loopback") as environment:
        told = call(environment, "python", code=code)
        assert told.strip() == "-1" or told.startswith("Error"), told
        assert call(environment, "fetch", url=f"{server.url}/h") == "page /h"


def test_threads_and_asyncio_and_a_client_of_its_own(server):
    pytest.importorskip("httpx")
    with tools("loopback", "fetch_all", timeout_s=60) as environment:
        urls = [f"{server.url}/{number}" for number in range(20)]
        told = call(environment, "fetch_all", urls=urls)
        assert json.loads(told) == 2 * [f"page /{number}" for number in range(20)]


def test_an_encrypted_connection(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = f"req -x509 -newkey rsa:2048 -nodes -days 1 -keyout {key} -out {certificate}"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(["openssl", *made.split(), *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = _Server("127.0.0.1")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sandbox = {"network": [f"localhost:{server.port}"], "readable": [str(certificate)]}
    with tools("none", "fetch_encrypted", sandbox=sandbox) as environment:
        url = f"https://localhost:{server.port}/k"
        told = call(environment, "fetch_encrypted", url=url, certificate=str(certificate))
        assert told == "page /k"
        assert "CERTIFICATE_VERIFY_FAILED" in call(
            environment, "fetch_encrypted", url=url, certificate=""
        )
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("localhost:80", r"none, loopback or a list of hosts: \['localhost:80'\]"),
        (None, "sandbox: null has no walls"),
        ([], "sandbox: null has no walls"),
        (["http://example.org"], "without http://"),
        (["*.example.org"], "without http://"),
        (["example.org:0"], "is not a host"),
        (["example.org:65536"], "is not a host"),
        (["0.0.0.0:80"], "is reached at localhost"),
        (["[::]:80"], "is reached at localhost"),
        (["[example.org]:80"], "is not a host"),
        ([8000], "valid string"),
    ],
)
def test_a_host_that_is_none_is_told(network, message):
    with pytest.raises(ValueError, match=message):
        ToolsConfig(tools=("zoom",), sandbox={"network": network})


def test_hosts_are_read_with_their_ports():
    network = ["example.org", "localhost:9000", "::1", "[fd00::2]:443", "192.0.2.1:80"]
    config = ToolsConfig(tools=("zoom",), sandbox={"network": network})
    assert config.sandbox.hosts == (
        ("example.org", None),
        ("localhost", 9000),
        ("::1", None),
        ("fd00::2", 443),
        ("192.0.2.1", 80),
    )
