"""Says of OpenAI's addresses that are not served here why not."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from gateway.errors import GatewayError
from gateway.http.api import Api
from gateway.openai.error_objects import ApiError, render_error

_TEXT_ONLY: Final = "the model here reads and writes text only"
_NOTHING_STORED: Final = "this server stores responses (/v1/responses) and no other objects"
_REASONS: Final = {
    "embeddings": "the model here writes text and makes no embeddings; ask another server for them",
    "moderations": "the model here writes text and judges none; ask another server for that",
    "rerank": "the model here writes text and ranks none; ask another server for that",
    "audio": _TEXT_ONLY,
    "images": _TEXT_ONLY,
    "videos": _TEXT_ONLY,
    "realtime": _TEXT_ONLY,
    "fine_tuning": "nothing is trained here; the project trains an adapter with scripts/train",
    "batches": "send the requests one by one, as many at once as you like; they wait for their turn",
    "assistants": "use /v1/responses, with previous_response_id for the next turn",
    "threads": "use /v1/responses, with previous_response_id for the next turn",
    "conversations": "use previous_response_id of /v1/responses",
    "messages": "Anthropic's API is not served; use /v1/chat/completions or /v1/responses",
    "vector_stores": _NOTHING_STORED,
    "containers": _NOTHING_STORED,
    "uploads": _NOTHING_STORED,
    "evals": _NOTHING_STORED,
}
_SERVED: Final = (
    "there is nothing at this address; /v1/chat/completions, /v1/completions, /v1/responses and /v1/models are"
)


def _render(request: Request, error: GatewayError) -> Response:
    if error.status != 404:
        return render_error(request, error)
    path = request.url.path
    reason = _REASONS.get(path.removeprefix("/v1/").partition("/")[0], _SERVED)
    text = f"{request.method} {path[:200]}: {reason}"
    return render_error(request, ApiError(text, status=404, code="unsupported_endpoint"))


UNSERVED = Api(APIRouter(), ("/v1",), _render)
