"""The routes of the pages, which are written from templates, and of their style sheets and scripts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import JsonValue

from gateway.cache.answer_cache import ORIGINAL
from gateway.errors import GatewayError, NotFoundError, UnauthorizedError, UnavailableError
from gateway.gateway import Gateway, get_gateway, get_whole_gateway
from gateway.http.api import Api
from gateway.http.security import CONTENT_POLICY
from gateway.pages.form_fields import as_text, form_fields
from gateway.pages.profile import profile_for
from gateway.predictions.prediction import Prediction, output_text
from gateway.replicate.objects import base_url

_router = APIRouter()
_START_SECONDS = "2"  # until a page that waits for the model asks again
# Scripts and styles are files of this server; none is inline, so no text of a model or caller can become one.
_HEADERS: Final = {
    "Content-Security-Policy": CONTENT_POLICY.replace("form-action 'self'", "form-action 'none'"),
    "Cache-Control": "no-store",
}
_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@_router.get("/")
async def playground(request: Request, tweak: str | None = None) -> Response:
    """The playground, with the inputs of the prediction `tweak` if it is given."""
    try:
        return await _playground(request, await get_gateway(request), tweak)
    except UnauthorizedError:
        return RedirectResponse("/login", 303)
    except UnavailableError as error:
        page = render_page("starting.html", status=error.status, detail=error.detail)
        page.headers["Refresh"] = _START_SECONDS
        return page
    except GatewayError as error:  # the address `/` alone has no prefix for `include`
        return _render_error(request, error)


@_router.get("/p/{prediction_id}")
async def permalink(gateway: Annotated[Gateway, Depends(get_whole_gateway)], prediction_id: str) -> Response:
    """The page of one prediction. Who has the link may see it, also without a key: an id cannot be guessed."""
    prediction = await _find(gateway, prediction_id)
    return render_page(
        "prediction.html",
        prediction=prediction,
        inputs={name: as_text(value) for name, value in prediction.input.items()},
        output=output_text(prediction.output),
        metrics=json.dumps({name: value for name, value in prediction.metrics.items() if name != ORIGINAL}),
    )


@_router.get("/static/{name}")
async def static_file(request: Request, name: str) -> Response:
    """A style sheet or script."""
    file = static_files().get(name)
    if file is None:
        raise NotFoundError(f"there is no file {name[:100]}")
    headers = {"ETag": file.etag, "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


async def _playground(request: Request, gateway: Gateway, tweak: str | None) -> Response:
    info = await gateway.model.read()
    profile = profile_for(info.input_properties, gateway.settings.playground)
    values: Mapping[str, JsonValue] = profile.examples[0].input if profile.examples else {}
    if tweak is not None:
        values = (await _find(gateway, tweak)).input
    return render_page(
        "playground.html",
        model=info.name,
        version=info.version,
        base=base_url(request, gateway.settings),
        fields=form_fields(info.openapi, profile, values),
        examples=[(example.title, json.dumps(example.input)) for example in profile.examples],
        openai=info.has_conversations or bool(info.required_texts),
        texts=() if info.has_conversations else info.required_texts,
        keys=gateway.callers is not None,
    )


async def _find(gateway: Gateway, prediction_id: str) -> Prediction:
    prediction = await gateway.runner.get(prediction_id)
    if prediction is None:
        raise NotFoundError("There is no such prediction. It may have been deleted, or the link is incomplete.")
    return prediction


def _render_error(request: Request, error: GatewayError) -> Response:
    return render_page("problem.html", status=error.status, title=error.title, detail=error.detail)


def render_page(template: str, /, *, status: int = 200, **values: object) -> HTMLResponse:
    """A page, written from a file of the folder templates."""
    return HTMLResponse(_TEMPLATES.get_template(template).render(**values), status, headers=dict(_HEADERS))


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


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One style sheet or script.

    Args:
        content: the bytes of the file.
        media_type: the header Content-Type.
        etag: a text that changes with the content.
    """

    content: bytes
    media_type: str
    etag: str


@cache
def static_files() -> dict[str, StaticFile]:
    """All files of the folder static by name, which are read once."""
    found = {}
    for path in sorted(_FOLDER.iterdir()):
        content = path.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        found[path.name] = StaticFile(content, f"{_TYPES[path.suffix]}; charset=utf-8", etag)
    return found


_TEMPLATES: Final = _environment()


PAGES = Api(_router, ("/p/", "/static/"), _render_error)
