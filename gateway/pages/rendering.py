"""Writes HTML pages from templates that escape everything, with headers that let no foreign script run."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Final

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import JsonValue

from gateway.security import CONTENT_POLICY

# Scripts and styles are files of this server; none is inline, so no text of a model or caller can become one.
_HEADERS: Final = {
    "Content-Security-Policy": CONTENT_POLICY.replace("form-action 'self'", "form-action 'none'"),
    "Cache-Control": "no-store",
}


def render_page(template: str, /, *, status: int = 200, **values: object) -> HTMLResponse:
    """A page from a file of the folder templates."""
    return HTMLResponse(_TEMPLATES.get_template(template).render(**values), status, headers=dict(_HEADERS))


def output_text(output: JsonValue) -> str:
    """An output as people read it: pieces of text joined, anything else as JSON."""
    if isinstance(output, list) and all(isinstance(piece, str) for piece in output):
        return "".join(map(str, output))
    if output is None or isinstance(output, str):
        return output or ""
    return json.dumps(output, ensure_ascii=False, indent=2)


def _moment(time: str) -> str:
    return f"{datetime.fromisoformat(time):%d %b %Y, %H:%M:%S} UTC"


def _environment() -> Environment:
    # Not only files ending in .html: there is no template whose values need no escaping.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(moment=_moment)
    return environment


_TEMPLATES: Final = _environment()
