"""A page of another site can neither end the service nor make it work."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.gateway.door_server import DoorServer

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


def test_it_cannot_shut_down_or_predict(browser: Browser, door: DoorServer, site: str):
    page = browser.new_page()
    page.goto(site)
    before = door.client.get("/v1/predictions").json()["results"]
    for path in ("/shutdown", "/predictions", "/v1/predictions"):
        assert page.evaluate(SEND, door.url + path) == "sent"  # a browser sends it, and hides the answer
    assert door.client.get("/ready").status_code == 200
    assert door.client.get("/v1/predictions").json()["results"] == before
    log = door.log.read_text()
    for path in ("/predictions", "/v1/predictions"):
        assert f'"path":"{path}","status":403' in log.replace('": ', '":').replace(", ", ","), log[-2000:]
    page.close()
