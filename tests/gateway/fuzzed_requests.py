"""Random requests: some nearly right, some of hostile pieces."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from lab.endurance.random_inputs import value
from tests.gateway.gateway_server import MODEL

METHODS = ("GET", "POST", "POST", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "BREW")
PATHS = (
    *("/v1/predictions", f"/v1/models/{MODEL}/predictions", f"/v1/deployments/{MODEL}/predictions"),
    *("/v1/predictions/{}", "/v1/predictions/{}/cancel", "/v1/predictions/{}/stream", "/v1/predictions?cursor={}"),
    *(f"/v1/models/{MODEL}", f"/v1/models/{MODEL}/versions/{{}}", "/v1/models/{}/{}", "/{}", "/v1/{}", "//{}"),
    *("/v1/chat/completions", "/v1/completions", "/v1/models", "/", "/p/{}", "/metrics", "/health", "/ready"),
    *("/?tweak={}", "/static/{}", "/login", "/v1/models/{}", "/v1/webhooks/default/secret"),
    *("/v1/corrections", "/v1/corrections/check", "/v1/corrections?cursor={}&kind={}", "/v1/corrections/{}"),
)
PIECES = (
    *("a" * 26, "..", "%00", "%2e%2e%2f", "a" * 5000, "%ff", "%c3%a9", "'; DROP TABLE predictions; --", "*", "null"),
    *("", "bmV3ZXI9OTk5OTk5OTk5OTk5OTk5OTk5OTk5", "b2xkZXI9LTE", "b2xkZXI9MA", "{}", "0", "<script>", "predictions"),
)
HEADERS = {
    "Prefer": ("wait=1", "wait=999", "wait=\xff", "respond-async", ";;;", "wait=1" * 500),
    "Last-Event-ID": ("1:1-1", "x", "\xff", "999999999999999:999999999-999999999", "-1"),
    "Content-Type": ("text/plain", "application/json; charset=utf-16", "", "multipart/form-data"),
    "Content-Encoding": ("gzip", "br"),
    "Accept": ("text/event-stream", "image/png", ""),
    "Authorization": ("Bearer x", "Token", "\xff"),
    "Host": ("evil.example/x", "a:b:c", "[::", "x" * 300),
    "X-Forwarded-Host": ("evil.example",),
}
NAMES = (
    *("input", "version", "webhook", "webhook_events_filter", "stream", "id", "nlq", "cols", "max_tokens", "", "\0"),
    *("model", "messages", "prompt"),
)


def body(rng: random.Random, inputs: Mapping[str, Any]) -> bytes:
    whole = {"input": inputs, "version": MODEL, "stream": True}
    match rng.randrange(5):
        case 0:
            return rng.randbytes(rng.randrange(200))
        case 1:
            content: Any = value(rng, NAMES)
        case 2:
            content = {**whole, rng.choice(NAMES): value(rng, NAMES)}
        case _:
            content = {**whole, "input": {**inputs, rng.choice(NAMES): value(rng, NAMES)}}
    text = json.dumps(content, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass")
    return text[: rng.randrange(len(text) + 1)] if rng.random() < 0.1 else text


@dataclass(frozen=True, slots=True)
class FuzzedRequest:
    method: str
    path: str
    headers: list[tuple[bytes, bytes]]
    content: bytes

    @classmethod
    def random(
        cls, rng: random.Random, inputs: Mapping[str, Any], pieces: Sequence[str] = PIECES, **headers: Sequence[str]
    ) -> FuzzedRequest:
        """A random request.

        Args:
            rng: makes all choices.
            inputs: inputs that the model accepts.
            pieces: parts of paths.
            headers: more values of headers, each of which is in half of the requests.
        """
        path = rng.choice(PATHS)
        while "{}" in path:
            path = path.replace("{}", rng.choice(pieces), 1)
        chosen = {name: rng.choice(HEADERS[name]) for name in rng.sample(sorted(HEADERS), rng.randrange(3))}
        chosen |= {name: rng.choice(values) for name, values in headers.items() if rng.random() < 0.5}
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in chosen.items()]
        return cls(rng.choice(METHODS), path, encoded, body(rng, inputs))

    def arguments(self, base_url: httpx.URL | str) -> dict[str, Any]:
        """The arguments of `httpx.Client.request`."""
        url = httpx.URL(base_url).copy_with(raw_path=self.path.encode())
        return {"method": self.method, "url": url, "content": self.content, "headers": self.headers}


def is_error(response: httpx.Response) -> bool:
    """Whether it has the shape of an API's errors; pages and uvicorn, which refuses what is not HTTP, answer texts."""
    kind = response.headers.get("content-type", "").partition(";")[0]
    if kind == "application/problem+json":
        return response.json()["status"] == response.status_code and bool(response.json()["detail"])
    if kind == "application/json":
        content = response.json()
        return bool(content["error"]["message"] if "error" in content else content["detail"])
    return kind in ("text/html", "text/plain") and bool(response.text)
