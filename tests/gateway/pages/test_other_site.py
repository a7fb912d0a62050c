"""A page of another site can neither end the service nor make it work."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from tests.free_ports import free_port
from tests.gateway.gateway_server import GatewayServer
from tests.gateway.hook_receiver import Receiver
from tests.serve_command import Serve

pytestmark = pytest.mark.server
SEND = """async (url) => {
    try { await fetch(url, {method: 'POST', mode: 'no-cors', body: '{"input": {"nlq": "a", "cols": "a"}}'}) }
    catch (error) { return String(error) }
    return 'sent'
}"""


@pytest.fixture
def site() -> Iterator[str]:
    """The address of an empty page."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_it_cannot_shut_down_or_predict(browser: Browser, gateway: GatewayServer, site: str):
    page = browser.new_page()
    page.goto(site)
    before = gateway.client.get("/v1/predictions").json()["results"]
    for path in ("/shutdown", "/predictions", "/v1/predictions"):
        assert page.evaluate(SEND, gateway.url + path) == "sent"  # a browser sends it, and hides the answer
    assert gateway.client.get("/ready").status_code == 200
    assert gateway.client.get("/v1/predictions").json()["results"] == before
    log = gateway.log.read_text()
    for path in ("/predictions", "/v1/predictions"):
        assert f'"path":"{path}","status":403' in log.replace('": ', '":').replace(", ", ","), log[-2000:]
    page.close()


def test_neither_it_nor_a_webhook_ends_what_scripts_serve_runs(
    browser: Browser, site: str, receiver: Receiver, tmp_path: Path
):
    ports = free_port(), free_port()
    options = ("--engine", "fake", "--port", str(ports[0]), "--gateway-port", str(ports[1]))
    server = Serve(tmp_path, *options, GATEWAY_DATABASE=str(tmp_path / "predictions.sqlite"))
    try:
        server.wait_for("/health-check")
        page = browser.new_page()
        page.goto(site)
        for port in ports:
            for name in ("127.0.0.1", "localhost", "0.0.0.0"):
                page.evaluate(SEND, f"http://{name}:{port}/shutdown")  # where the browser refuses, nothing is sent
        page.close()
        cog = f"http://127.0.0.1:{ports[0]}"
        (hidden,) = httpx.get(f"http://127.0.0.1:{ports[1]}/ready").json()["servers"]
        receiver.statuses, receiver.location = [307], f"{hidden['url']}/shutdown"
        inputs = {"input": {"nlq": "a", "cols": "a"}}
        hooked = {**inputs, "webhook": receiver.url, "webhook_events_filter": ["completed"]}
        assert httpx.post(f"{cog}/predictions", json=hooked, timeout=60).json()["status"] == "succeeded"
        assert [receiver.next()["status"] for _ in range(2)] == ["succeeded"] * 2, "the redirected one is sent again"
        assert httpx.post(f"{cog}/predictions", json=inputs, timeout=60).json()["status"] == "succeeded"
        assert server.process.poll() is None, server.said
    finally:
        server.end()
