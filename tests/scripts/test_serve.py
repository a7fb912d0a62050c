"""scripts/serve as an operator runs it: start, shutdown, and failures to start."""

from __future__ import annotations

import re
import shlex
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psutil
import pytest

from pipeline.package.errors import PortError
from pipeline.package.free_ports import Listener, check_ports
from tests.free_ports import free_port
from tests.serve_command import Serve

pytestmark = pytest.mark.server
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def serve(tmp_path) -> Iterator[list[Serve]]:
    started: list[Serve] = []
    yield started
    for one in started:
        one.end()


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_a_request_that_works_and_shuts_down_with_0(serve, tmp_path, port, end):
    server = Serve(tmp_path, "--bare", "--engine", "fake", "--port", str(port))
    serve.append(server)
    server.wait_for("/health-check")
    assert f"READY on http://127.0.0.1:{port}" in server.said
    assert "deprecated" not in server.said, "users of the server cannot change predict.py's method"
    command = re.search(r"^  (curl .*\\\n.*)$", server.said, re.MULTILINE)[1].replace("\\\n", " ")
    words = shlex.split(command)
    answer = httpx.post(words[2], content=words[words.index("-d") + 1], headers={"Content-Type": "application/json"})
    assert answer.json()["status"] == "succeeded"
    server.process.send_signal(end)
    assert server.process.wait(30) == 0, server.said


def test_the_gateway_is_beside_it_and_ends_with_it(serve, tmp_path):
    ports = free_port(), free_port()
    options = ("--engine", "fake", "--port", str(ports[0]), "--gateway-port", str(ports[1]))
    server = Serve(tmp_path, *options, GATEWAY_DATABASE=str(tmp_path / "predictions.sqlite"))
    serve.append(server)
    server.wait_for("/health-check")
    url = f"http://127.0.0.1:{ports[1]}"
    assert f"REPLICATE_BASE_URL={url}, model local/tiny" in server.said
    assert f"OPENAI_BASE_URL={url}/v1, model local/tiny" in server.said
    assert f"Playground  {url}/\n" in server.said
    assert '<h2 id="input-title">Input</h2>' in httpx.get(url).text
    body = {"input": {"nlq": "a", "cols": "a"}}
    answer = httpx.post(f"{url}/v1/models/local/tiny/predictions", json=body, headers={"Prefer": "wait"})
    assert answer.json()["status"] == "succeeded"
    cog = f"http://127.0.0.1:{ports[0]}"  # the gateway has Cog's protocol there, but for what ends it
    assert httpx.post(f"{cog}/predictions", json=body, timeout=60).json()["status"] == "succeeded"
    events = httpx.put(f"{cog}/predictions/it", json=body, headers={"Accept": "text/event-stream"}, timeout=60).text
    assert events.startswith("event: start") and '"succeeded"' in events
    assert httpx.post(f"{cog}/predictions", json={"input": {"nlq": "a"}}).json()["detail"][0]["loc"][-1] == "cols"
    assert httpx.post(f"{cog}/predictions", json={"input": {**body["input"], "max_tokens": None}}).status_code == 200
    assert httpx.get(f"{cog}/health-check").json()["status"] == "READY"
    assert httpx.post(f"{cog}/shutdown").status_code == 404
    assert httpx.get(f"{cog}/health-check", headers={"Host": "evil.example"}).status_code == 403
    for place in (*(f"127.0.0.1:{port}" for port in ports), f"localhost:{ports[0]}", f"0.0.0.0:{ports[1]}"):
        hooked = {**body, "webhook": f"http://{place}/shutdown"}
        assert "take no webhooks" in httpx.post(f"{cog}/predictions", json=hooked).text
    children = psutil.Process(server.process.pid).children(recursive=True)
    heard = {one.laddr.ip for child in children for one in child.net_connections() if one.status == psutil.CONN_LISTEN}
    assert len(heard) == 2 and "127.0.0.1" in heard, "Cog itself listens where nobody looks"
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(30) == 0, server.said
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_gateway_that_is_killed_starts_again_beside_the_same_server(serve, tmp_path, end):
    ports = free_port(), free_port()
    options = ("--engine", "fake", "--port", str(ports[0]), "--gateway-port", str(ports[1]))
    server = Serve(tmp_path, *options, GATEWAY_DATABASE=str(tmp_path / "predictions.sqlite"))
    serve.append(server)
    server.wait_for("/health-check")
    children = psutil.Process(server.process.pid).children()
    (gateway,) = [child for child in children if "gateway" in child.cmdline()]
    (cog,) = [child for child in children if "cog.server.http" in child.cmdline()]
    gateway.send_signal(end)
    server.wait_for("it starts again")
    url, body = f"http://127.0.0.1:{ports[1]}", {"input": {"nlq": "a", "cols": "a"}}
    transport = httpx.HTTPTransport(retries=8)  # of connections: until the new gateway listens
    with httpx.Client(transport=transport, timeout=60) as client:
        created = client.post(f"{url}/v1/models/local/tiny/predictions", json=body, headers={"Prefer": "wait"})
    assert created.json()["status"] == "succeeded", created.text
    assert cog.is_running()
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(30) == 0, server.said


def test_a_gateway_that_cannot_start_ends_all_with_an_error(serve, tmp_path, port):
    options = ("--engine", "fake", "--port", str(port), "--gateway-port", str(free_port()))
    server = Serve(tmp_path, *options, GATEWAY_MAX_ACTIVE="0")
    serve.append(server)
    assert server.process.wait(60) == 1
    server.wait_for("max_active")
    server.wait_for("The gateway ended")


def test_concurrency_is_the_number_of_slots(serve, tmp_path, port):
    server = Serve(
        tmp_path, "--bare", "--engine", "fake", "--port", str(port), "--concurrency", "2", COG_LOG_LEVEL="info"
    )
    serve.append(server)
    server.wait_for("READY")
    without_colors = re.sub(r"\x1b\[[0-9;]*m", "", server.said)
    assert "num_slots=2" in without_colors


def test_weights_that_do_not_match_the_lock_are_reported(serve, tmp_path, port):
    server = Serve(tmp_path, "--bare", "--engine", "fake", "--port", str(port), WEIGHTS_LOCK=str(tmp_path / "none"))
    serve.append(server)
    assert server.process.wait(60) == 1
    server.wait_for("The model did not load")
    assert "cannot read the lock" in server.said


class Healthy(BaseHTTPRequestHandler):
    """Another server, which answers the health check as Cog's does."""

    def do_GET(self) -> None:
        body = b'{"status": "READY"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@pytest.mark.parametrize(
    ("option", "other", "server_name"),
    [("--port", "--gateway-port", "Cog"), ("--gateway-port", "--port", "the gateway")],
)
def test_a_port_in_use_is_one_line_that_names_the_option(serve, tmp_path, option, other, server_name):
    with ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as taken:
        threading.Thread(target=taken.serve_forever, daemon=True).start()
        number = taken.server_port
        server = Serve(tmp_path, "--engine", "fake", option, str(number), other, str(free_port()))
        serve.append(server)
        assert server.process.wait(60) == 1
        server.wait_for("\n")
        taken.shutdown()
    wanted = f"error: port {number} on 127.0.0.1, for {server_name}, is in use; "
    assert server.said == f"{wanted}end the other server, or choose another port with {option}\n"


def test_both_servers_cannot_have_one_port(serve, tmp_path, port):
    server = Serve(tmp_path, "--engine", "fake", "--port", str(port), "--gateway-port", str(port))
    serve.append(server)
    assert server.process.wait(60) == 1
    server.wait_for(f"port {port} on 127.0.0.1, for the gateway, is in use")


@pytest.mark.parametrize(
    ("listener", "message"),
    [
        (Listener("Cog", "127.0.0.1", 70000, "--port"), r"port 70000 .* cannot be used: .*; .* with --port$"),
        (Listener("Cog", "192.0.2.1", 0, "--port"), r"on 192\.0\.2\.1, .* cannot be used: .* with --host$"),
    ],
)
def test_an_address_that_no_server_can_have_is_refused(listener, message):
    with pytest.raises(PortError, match=message):
        check_ports([listener])
