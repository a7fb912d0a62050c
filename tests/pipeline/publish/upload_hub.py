"""The tests' small model hub with uploads: repositories are created, large files stored, and commits made.

hub = UploadHub(token="hf_…"); hub.repos["org/model"]
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from typing import Any

from tests.pipeline.fetching.hub_server import LARGE, Hub, HubHandler, git_blob

PART = 400_000  # bytes from which a large file is sent in parts


class UploadHub(Hub):
    """A hub that accepts uploads, with one user who may write to the organisation `org`."""

    def __init__(self, token: str) -> None:
        super().__init__({}, token)
        self._server.RequestHandlerClass = type("Handler", (UploadHandler,), {"hub": self})
        self.private: dict[str, bool] = {}
        self.commits: dict[str, list[str]] = {}
        self.objects: dict[str, bytes] = {}  # large files, by sha256; also of pushes that were stopped
        self.parts: dict[str, dict[int, bytes]] = {}
        self.answers: dict[
            str, list[tuple[int, dict[str, str]]]
        ] = {}  # answers before good ones, by a part of the path
        self.upload_cuts = 0  # connections closed in the middle of an upload
        self.lost_answers = 0  # commits that are made and not confirmed
        self.received = 0  # bytes of large files
        self.pause = 0.0  # seconds per megabyte

    def create(self, repo: str, *, private: bool, files: dict[str, bytes] | None = None) -> None:
        self.repos[repo] = {".gitattributes": b"*.safetensors filter=lfs", **(files or {})}
        self.private[repo] = private
        self.commits[repo] = [hashlib.sha1(repo.encode()).hexdigest()]


class UploadHandler(HubHandler):
    hub: UploadHub

    def do_GET(self) -> None:
        planned = self.hub.answers.get("xet-write-token")
        if "xet-write-token" in self.path and planned:
            status, headers = planned.pop(0)
            return self._send(status, b"{}", headers)
        super().do_GET()

    def do_POST(self) -> None:
        self._write()

    def do_PUT(self) -> None:
        self._write()

    def _info(self, repo: str, revision: str) -> None:
        if not self._allowed(repo):
            return
        siblings = []
        for name, data in self.hub.repos[repo].items():
            lfs = {"lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}}
            large = lfs if len(data) >= LARGE else {}
            siblings.append({"rfilename": name, "size": len(data), "blobId": git_blob(data), **large})
        sha, private = self.hub.commits[repo][-1], self.hub.private[repo]
        self._send(200, json.dumps({"id": repo, "sha": sha, "private": private, "siblings": siblings}).encode(), {})

    def _write(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        with hub.lock:
            hub.requests[f"{self.command} {path}"] += 1
            planned = next((answers for part, answers in hub.answers.items() if part in path and answers), None)
            fault = planned.pop(0) if planned else None
        body = self._body(large="/store/" in path)
        if body is None:
            return
        if fault is not None:
            return self._send(fault[0], b"{}", fault[1])
        if match := re.fullmatch(r"/store/(\w{64})(?:/(\d+))?", path):  # signed addresses need no token
            return self._store(match[1], match[2], body)
        if self.headers.get("authorization") != f"Bearer {hub.token}":
            return self._send(401, b"{}", {"x-error-message": "Invalid credentials"})
        value = [json.loads(line) for line in body.splitlines()] if "/commit/" in path else json.loads(body)
        if path == "/api/repos/create":
            return self._create(value)
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/main", path)
        match = match or re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/(batch)", path)
        if match is None or match[1] not in hub.repos:
            return self._send(404, b"{}", {"x-error-code": "RepoNotFound"})
        getattr(self, f"_{match[2]}")(match[1], value)

    def _body(self, *, large: bool) -> bytes | None:
        """The request's body; None if this hub closes the connection in the middle."""
        size = int(self.headers.get("content-length", 0))
        with self.hub.lock:
            cut = large and self.hub.upload_cuts > 0
            self.hub.upload_cuts -= cut
        data = b""
        while len(data) < (size // 2 if cut else size):
            piece = self.rfile.read(min(1 << 14, size - len(data)))
            if not piece:
                return None  # the client was killed
            data += piece
            if large:
                self.hub.received += len(piece)
                time.sleep(self.hub.pause * len(piece) / (1 << 20))
        if cut:
            self.close_connection = True
            self.connection.close()
            return None
        return data

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"content-type": "application/json"})

    def _create(self, value: dict[str, Any]) -> None:
        repo = f"{value['organization']}/{value['name']}"
        if value["organization"] != "org":
            return self._send(403, b"{}", {"x-error-message": "no rights"})
        if repo in self.hub.repos:
            return self._send(409, b"{}", {})
        self.hub.create(repo, private=value.get("visibility") == "private")
        self._json({"url": f"{self.hub.url}/{repo}"})

    def _preupload(self, repo: str, value: dict[str, Any]) -> None:
        def answer(file: dict[str, Any]) -> dict[str, Any]:
            mode = "lfs" if file["size"] >= LARGE else "regular"
            return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}

        self._json({"files": [answer(file) for file in value["files"]]})

    def _batch(self, repo: str, value: dict[str, Any]) -> None:
        def answer(wanted: dict[str, Any]) -> dict[str, Any]:
            oid, size = wanted["oid"], wanted["size"]
            if oid in self.hub.objects:
                return {"oid": oid, "size": size}
            href = f"{self.hub.cdn}/store/{oid}"
            if size < PART:
                return {"oid": oid, "size": size, "actions": {"upload": {"href": href}}}
            header = {str(i + 1): f"{href}/{i + 1}" for i in range(-(-size // PART))} | {"chunk_size": str(PART)}
            return {"oid": oid, "size": size, "actions": {"upload": {"href": href, "header": header}}}

        self._json({"transfer": "basic", "objects": [answer(wanted) for wanted in value["objects"]]})

    def _store(self, oid: str, part: str | None, body: bytes) -> None:
        if part is not None:
            self.hub.parts.setdefault(oid, {})[int(part)] = body
            return self._send(200, b"", {"etag": f'"{part}"'})
        if self.command == "POST":  # all parts are there
            numbers = [done["partNumber"] for done in json.loads(body)["parts"]]
            body = b"".join(self.hub.parts[oid][number] for number in numbers)
        if hashlib.sha256(body).hexdigest() != oid:
            return self._send(400, b"{}", {})
        self.hub.objects[oid] = body
        self._send(200, b"{}", {})

    def _commit(self, repo: str, lines: list[dict[str, Any]]) -> None:
        hub = self.hub
        with hub.lock:
            parent = lines[0]["value"].get("parentCommit")
            if parent not in (None, hub.commits[repo][-1]):
                return self._send(412, b"{}", {})
            files = dict(hub.repos[repo])
            for line in lines[1:]:
                file = line["value"]
                stored = hub.objects.get(file.get("oid", ""))
                files[file["path"]] = base64.b64decode(file["content"]) if line["key"] == "file" else stored
            if None in files.values():
                return self._send(400, b"{}", {"x-error-message": "no such object"})
            hub.repos[repo] = files
            hub.commits[repo].append(hashlib.sha1(f"{repo}{len(hub.commits[repo])}".encode()).hexdigest())
            lost, hub.lost_answers = hub.lost_answers > 0, max(0, hub.lost_answers - 1)
        if lost:
            self.close_connection = True
            return self.connection.close()
        commit = hub.commits[repo][-1]
        self._json({"commitUrl": f"{hub.url}/{repo}/commit/{commit}", "commitOid": commit})
