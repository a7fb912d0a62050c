"""Servers that speak the protocols of S3 and of Google Cloud Storage, as processes, and what a test does with them."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.environment.enter import installed_environment
from tests.free_ports import free_port

BUCKET = "answers"


class StorageServer:
    """A server with one bucket."""

    def __init__(self, scheme: str, url: str) -> None:
        self.scheme, self.url = scheme, url
        self.place = f"{scheme}://{BUCKET}"
        self.settings = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": url,
            "STORAGE_EMULATOR_HOST": url,
        }

    def make_bucket(self, name: str = BUCKET) -> None:
        if self.scheme == "s3":
            self._ask("PUT", f"/{name}")
        else:
            self._ask("POST", "/storage/v1/b?project=test", f'{{"name": "{name}"}}'.encode(), "application/json")

    def remove_bucket(self, name: str) -> None:
        self._ask("DELETE", f"/{name}" if self.scheme == "s3" else f"/storage/v1/b/{name}")

    def put(self, key: str, data: bytes) -> None:
        if self.scheme == "s3":
            self._ask("PUT", f"/{BUCKET}/{key}", data)
        else:
            name = urllib.parse.quote(key, safe="")
            self._ask("POST", f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}", data)

    def get(self, key: str, bucket: str = BUCKET) -> bytes:
        if self.scheme == "s3":
            return self._ask("GET", f"/{bucket}/{key}")
        return self._ask("GET", f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(key, safe='')}?alt=media")

    def _ask(self, method: str, path: str, data: bytes | None = None, kind: str = "application/octet-stream") -> bytes:
        asked = urllib.request.Request(self.url + path, data, {"Content-Type": kind}, method=method)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return answer.read()


@contextmanager
def storage_server(scheme: str, log: Path, *, refuses: bool = False) -> Iterator[StorageServer]:
    """A server that runs, with its bucket; with `refuses`, one of S3 that knows no account after making the bucket."""
    programs = installed_environment("storage-servers") / "bin"
    port = str(free_port())
    command = {
        "s3": [programs / "moto_server", "--host", "127.0.0.1", "--port", port],
        "gs": [programs / "gcp-storage-emulator", "start", "--host=127.0.0.1", f"--port={port}", "--in-memory"],
    }[scheme]
    with log.open("wb") as output:
        env = {**os.environ, **({"INITIAL_NO_AUTH_ACTION_COUNT": "1"} if refuses else {})}
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    try:
        server = StorageServer(scheme, f"http://127.0.0.1:{port}")
        _wait(int(port), process, log)
        server.make_bucket()
        yield server
    finally:
        process.kill()
        process.wait()


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the server did not start: {log.read_text()}")
