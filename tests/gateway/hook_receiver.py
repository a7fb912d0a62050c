"""A receiver of webhooks."""

from __future__ import annotations

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """An HTTP server that keeps what is sent to it and answers with the given statuses, then with 200."""

    def __init__(self) -> None:
        self.received: queue.Queue[tuple[str, dict[str, str], str]] = queue.Queue()
        self.statuses: list[int] = []
        self.location = "/redirected"  # the header of each answer
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                outer.received.put((self.path, dict(self.headers), body))
                self.send_response(outer.statuses.pop(0) if outer.statuses else 200)
                self.send_header("Location", outer.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def next(self) -> dict[str, Any]:
        return json.loads(self.received.get(timeout=90)[2])

    def until_completed(self) -> list[dict[str, Any]]:
        found = [self.next()]
        while found[-1]["status"] not in ("succeeded", "failed", "canceled"):
            found.append(self.next())
        return found
