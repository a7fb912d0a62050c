"""A small model hub: the API and the downloads that huggingface_hub uses, with every way to fail.

hub = Hub({"org/model": {"config.json": b"{}", "model.safetensors": data}}); hub.url
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub.constants
import pytest

COMMIT = "c" * 40
CONTENT = "content"
LARGE = 10_000  # bytes from which a file is an LFS file, as on the hub


@dataclass
class Faults:
    """What goes wrong, each as often as counted."""

    statuses: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # answers before a good one
    cuts: int = 0  # connections closed in the middle of a large file
    flips: int = 0  # large files with one byte changed
    gated: bool = False
    seconds_per_megabyte: float = 0.0


class Hub:
    """Runs in a thread until closed."""

    def __init__(self, repos: dict[str, dict[str, bytes]], token: str | None = None) -> None:
        self.repos, self.token = repos, token
        self.faults = Faults()
        self.etag: str | None = None  # of plain files; CONTENT: of each what it holds
        self.damaged_small: str | None = None  # a small file that comes with its last byte changed
        self.requests: Counter[str] = Counter()
        self.sent = 0  # bytes of files
        self.lock = threading.Lock()
        handler = type("Handler", (HubHandler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.cdn = self.url.replace("127.0.0.1", "localhost")  # another host, as on the hub
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def ask_from_here(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    """The clients of this process ask this hub, without a login, and do not wait before they try again."""
    for name in [name for name in os.environ if name.startswith("HF_")]:
        monkeypatch.delenv(name)
    here = {"ENDPOINT": hub.url, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True, "HF_TOKEN_PATH": "/no/token"}
    here["HUGGINGFACE_CO_URL_TEMPLATE"] = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in here.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    monkeypatch.setattr("random.uniform", lambda low, high: 0.0)


def git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._route()

    def do_GET(self) -> None:
        self._route()

    def _route(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        with hub.lock:
            hub.requests[f"{self.command} {path}"] += 1
            fault = hub.faults.statuses.pop(0) if hub.faults.statuses else None
        if fault is not None:
            return self._send(fault[0], b"{}", fault[1])
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            return self._info(match[1], match[2] or "main")
        if match := re.fullmatch(r"/plain/([^/]+/[^/]+)/(.+)", path):
            data = hub.repos.get(match[1], {}).get(match[2])
            etag = f'"{hashlib.sha256(data or b"").hexdigest()[:20]}"' if hub.etag == CONTENT else hub.etag
            return self._file(data, {} if etag is None else {"etag": etag})
        if match := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
            assert "authorization" not in self.headers, "the login is for the hub only"
            return self._file(hub.repos[match[1]][match[2]], {})
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._resolve(match[1], match[3])
        self._send(404, b"{}", {"x-error-code": "EntryNotFound"})

    def _allowed(self, repo: str) -> bool:
        hub = self.hub
        if hub.token is not None and self.headers.get("authorization") != f"Bearer {hub.token}":
            self._send(401, b"{}", {"x-error-code": "RepoNotFound", "x-error-message": "Repository not found"})
        elif hub.faults.gated:
            self._send(403, b"{}", {"x-error-code": "GatedRepo", "x-error-message": "Access is restricted"})
        elif repo not in hub.repos:
            self._send(404, b"{}", {"x-error-code": "RepoNotFound"})
        else:
            return True
        return False

    def _info(self, repo: str, revision: str) -> None:
        if not self._allowed(repo):
            return
        if revision not in ("main", COMMIT):
            return self._send(404, b"{}", {"x-error-code": "RevisionNotFound"})
        siblings = []
        for name, data in self.hub.repos[repo].items():
            digest = hashlib.sha256(data).hexdigest()
            lfs = {"lfs": {"sha256": digest, "size": len(data), "pointerSize": 130}} if len(data) >= LARGE else {}
            siblings.append({"rfilename": name, "size": len(data), "blobId": git_blob(data), **lfs})
        self._send(200, json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode(), {})

    def _resolve(self, repo: str, name: str) -> None:
        if not self._allowed(repo):
            return
        data = self.hub.repos[repo].get(name)
        if data is None:
            return self._send(404, b"{}", {"x-error-code": "EntryNotFound"})
        digest = hashlib.sha256(data).hexdigest()
        headers = {"x-repo-commit": COMMIT, "etag": f'"{digest[:40]}"'}
        if len(data) < LARGE:
            return self._file(data[:-1] + b"!" if name == self.hub.damaged_small else data, headers)
        headers |= {"x-linked-size": str(len(data)), "x-linked-etag": f'"{digest}"'}
        self._send(302, b"", headers | {"location": f"{self.hub.cdn}/cdn/{repo}/{name}"})

    def _file(self, data: bytes | None, headers: dict[str, str]) -> None:
        if data is None:
            return self._send(404, b"", {})
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        status, start, stop = 200, 0, len(data)
        if wanted is not None and self.headers.get("if-range") in (None, headers.get("etag")):
            status, start = 206, int(wanted[1])
            stop = min(int(wanted[2]) + 1, len(data)) if wanted[2] else len(data)
            headers = headers | {"content-range": f"bytes {start}-{stop - 1}/{len(data)}"}
        part, faults = data[start:stop], self.hub.faults
        cut = None
        with self.hub.lock:
            if self.command == "GET" and len(data) >= LARGE:
                if faults.flips:
                    faults.flips -= 1
                    part = part[:50] + bytes([part[50] ^ 1]) + part[51:]
                elif faults.cuts:
                    faults.cuts -= 1
                    cut = len(part) // 2
        self._send(status, part, headers | {"accept-ranges": "bytes"}, cut)

    def _send(self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in ({"content-length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            for at in range(0, len(body[:cut]), 1 << 16):
                piece = body[:cut][at : at + (1 << 16)]
                self.wfile.write(piece)
                self.hub.sent += len(piece) if status in (200, 206) else 0
                time.sleep(self.hub.faults.seconds_per_megabyte * len(piece) / (1 << 20))
        except OSError:
            pass  # the client was killed
        if cut is not None:
            self.close_connection = True
