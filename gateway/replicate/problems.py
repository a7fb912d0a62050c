"""Errors in Replicate's shape: problem details (RFC 9457) with a list of wrong fields."""

from __future__ import annotations

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from gateway.errors import GatewayError


def render_problem(request: Request, error: GatewayError) -> Response:
    """The answer for an error."""
    content: dict[str, object] = {"title": error.title, "status": error.status, "detail": error.detail}
    if error.fields:
        content["invalid_fields"] = [
            {"field": ".".join(field.path), "type": field.kind, "description": field.message} for field in error.fields
        ]
    return JSONResponse(content, error.status, media_type="application/problem+json")
