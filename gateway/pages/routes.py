"""The routes of the pages, which are written from templates, and of their style sheets and scripts."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import JsonValue

from gateway.cache.answer_cache import ORIGINAL
from gateway.corrections.correction import Correction, Kind, State
from gateway.corrections.routes import corrections_of
from gateway.errors import GatewayError, NotFoundError, UnauthorizedError, UnavailableError
from gateway.gateway import Gateway, WholeGateway, get_gateway
from gateway.http.api import Api
from gateway.http.security import CONTENT_POLICY
from gateway.pages.form_fields import as_text, form_fields
from gateway.pages.profile import profile_for
from gateway.predictions.prediction import Prediction, output_text
from gateway.replicate.objects import base_url, prediction_object
from gateway.upstream.model_info import ModelInfo

_router = APIRouter()
_TITLE: Final = 80  # characters
_CHAT: Final = {"messages", "prompt"}  # inputs whose answers are written in Markdown
_PAGE: Final = 50  # predictions on a page of the history
_START_SECONDS = "2"  # until a page that waits for the model asks again
# Scripts and styles are files of this server; none is inline, so no text of a model or caller can become one.
_HEADERS: Final = {
    "Content-Security-Policy": CONTENT_POLICY.replace("form-action 'self'", "form-action 'none'"),
    "Cache-Control": "no-store",
}
_FOLDER: Final = Path(__file__).parent / "static"
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class ReadmeError(GatewayError):
    """The operator's README cannot be read."""

    status = 500
    title = "The README cannot be read"


async def page_gateway(request: Request) -> Gateway:
    """The gateway as a page shows it to the request's caller; who has no key is led to the page /login."""
    try:
        return await get_gateway(request)
    except UnauthorizedError as error:
        raise HTTPException(303, headers={"Location": "/login"}) from error


PageGateway = Annotated[Gateway, Depends(page_gateway)]


@_router.get("/")
async def playground(
    request: Request, gateway: PageGateway, tweak: str | None = None, correction: str | None = None
) -> Response:
    """The playground, with the inputs of the prediction `tweak` or of a correction if it is given."""
    try:
        return await _playground(request, gateway, tweak, correction)
    except UnavailableError as error:
        page = render_page("starting.html", status=error.status, detail=error.detail)
        page.headers["Refresh"] = _START_SECONDS
        return page
    except GatewayError as error:  # the address `/` alone has no prefix for `include`
        return render_error(request, error)


@_router.get("/p/{prediction_id}")
async def permalink(request: Request, gateway: WholeGateway, prediction_id: str) -> Response:
    """The page of one prediction. Who has the link may see it, also without a key: an id cannot be guessed."""
    prediction = await _find(gateway, prediction_id)
    own = await _own_gateway(request, prediction_id)
    info = await _info(gateway)
    shown = prediction_object(prediction, base_url(request, gateway.settings))
    shown["metrics"] = {name: value for name, value in prediction.metrics.items() if name != ORIGINAL}
    return render_page(
        "prediction.html",
        **_code(request, gateway, info),
        prediction=prediction,
        title=_title(prediction, info, gateway),
        chat=not _CHAT.isdisjoint(prediction.input),
        is_other=info is not None and (info.name, info.version) != (prediction.model, prediction.version),
        shown=json.dumps(shown),
        inputs={name: as_text(value) for name, value in prediction.input.items()},
        output=output_text(prediction.output),
        corrects=own is not None and own.corrections is not None,
        admin=own is not None and own.is_admin,
    )


@_router.get("/versions")
async def versions(gateway: PageGateway) -> Response:
    """The versions whose predictions the caller sees, and which one is served."""
    info = await _info(gateway)
    served = None if info is None else (info.name, info.version)
    return render_page("versions.html", versions=await gateway.store.versions(), served=served, shadow=gateway.shadow)


@_router.get("/api")
async def api(request: Request, gateway: PageGateway) -> Response:
    """How programs ask the model: addresses, a call in code, inputs and output."""
    info = await gateway.model.read()
    profile = profile_for(info.input_properties, gateway.settings.playground)
    example = profile.examples[0].input if profile.examples else {}
    return render_page(
        "api.html",
        **_code(request, gateway, info),
        model=info.name,
        version=info.version,
        input=json.dumps(example),
        fields=form_fields(info.openapi, profile, {}),
    )


@_router.get("/readme")
async def readme(gateway: PageGateway) -> Response:
    """The package's README."""
    path = gateway.settings.readme
    try:
        text = None if path is None else await asyncio.to_thread(path.read_text, "utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReadmeError(f"GATEWAY_README: {path} cannot be read: {error}") from error
    return render_page("readme.html", text=text)


@_router.get("/history")
async def history(gateway: PageGateway, sort: str = "", older: str = "", surer: str = "") -> Response:
    """The predictions that the caller sees, the newest first or the most doubtful."""
    if is_doubtful := sort == "doubtful":
        doubtful = await gateway.store.doubtful(surer_than=_place(surer, older), size=_PAGE)
        found, surer_than = doubtful.predictions, doubtful.surer
        link = {} if surer_than is None else {"sort": sort, "surer": str(surer_than[0]), "older": str(surer_than[1])}
    else:
        page = await gateway.store.page(older_than=_number(older), size=_PAGE)
        found, link = page.predictions, {} if page.older is None else {"older": str(page.older)}
    info = await _info(gateway)
    return render_page(
        "history.html",
        rows=[_history_row(one, info, gateway) for one in found],
        is_doubtful=is_doubtful,
        more=link and f"?{urlencode(link)}",
        corrects=gateway.corrections is not None,
    )


@_router.get("/examples")
async def examples(gateway: PageGateway, older: str = "") -> Response:
    """Good answers that people kept."""
    about = "Good answers. Run opens the playground with their inputs."
    nothing = "There are none yet. Below an answer in the playground, “Add to examples” keeps a good one."
    return await _corrections(gateway, "Examples", about, nothing, older, kind=Kind.EXAMPLE)


@_router.get("/corrections")
async def corrections(gateway: PageGateway, state: str | None = None, older: str = "") -> Response:
    """What people said of answers."""
    about = "What was said of answers: wrong ones with the right one, reports, and examples."
    nothing = "There are none. Below an answer in the playground, “Correct” says what the right one is."
    chosen = next((one for one in State if one == state), None)
    return await _corrections(gateway, "Corrections", about, nothing, older, state=chosen, states=("all", *State))


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


async def _corrections(
    gateway: Gateway,
    title: str,
    about: str,
    nothing: str,
    older: str,
    *,
    kind: Kind | None = None,
    state: State | None = None,
    states: tuple[str, ...] = (),
) -> Response:
    """The page of the corrections that the caller sees, of one kind and state or of any."""
    page = await asyncio.to_thread(corrections_of(gateway).page, kind=kind, state=state, older_than=_number(older))
    chosen = {} if state is None else {"state": state}
    return render_page(
        "corrections.html",
        title=title,
        about=about,
        nothing=nothing,
        states=states,
        state=state or "all",
        corrections=page.corrections,
        older=page.older and f"?{urlencode({**chosen, 'older': page.older})}",
        admin=gateway.is_admin,
        keys=gateway.callers is not None,
        caller=gateway.caller and gateway.caller.name,
    )


def _number(text: str) -> int | None:
    """A number in an address; None for what is none."""
    return int(text[:18]) if text.isascii() and text.isdecimal() else None


def _place(surer: str, older: str) -> tuple[float, int] | None:
    """A place among the doubtful predictions in an address; None for the first one."""
    number = _number(older)
    try:
        return None if number is None else (float(surer), number)
    except ValueError:
        return None


def _history_row(prediction: Prediction, info: ModelInfo | None, gateway: Gateway) -> dict[str, Any]:
    """What the page of the history shows of a prediction."""
    confidence = prediction.metrics.get("confidence")
    lowest, limit = _figure(confidence, "lowest"), _figure(confidence, "doubtful_below")
    return {
        "prediction": prediction,
        "title": _title(prediction, info, gateway),
        "output": shortened(output_text(prediction.output)),
        "share": "" if lowest is None else f"{math.floor(100 * lowest)} %",
        "is_doubtful": lowest is not None and limit is not None and lowest < limit,
    }


def _figure(value: JsonValue, name: str) -> float | None:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, int | float) and math.isfinite(found) else None


async def _own_gateway(request: Request, prediction_id: str) -> Gateway | None:
    """The gateway for who may also use the API on a prediction; None for who has only its link."""
    try:
        gateway = await get_gateway(request)
    except UnauthorizedError:
        return None
    return gateway if await gateway.runner.get(prediction_id) is not None else None


async def _playground(request: Request, gateway: Gateway, tweak: str | None, correction: str | None) -> Response:
    info = await gateway.model.read()
    profile = profile_for(info.input_properties, gateway.settings.playground)
    values: Mapping[str, JsonValue] = profile.examples[0].input if profile.examples else {}
    notice = answered = ""
    if tweak is not None or correction is not None:
        source = await (_find(gateway, tweak) if tweak is not None else _find_correction(gateway, correction or ""))
        lost = [name for name in source.input if name not in info.input_properties]
        if lost:
            notice = (
                f"{source.model or 'Another model'} was asked with {', '.join(lost)}, which {info.name} does not have."
            )
        if len(lost) < len(source.input):
            values = source.input
            answered = output_text(source.output) if isinstance(source, Prediction) else ""
    return render_page(
        "playground.html",
        **_code(request, gateway, info),
        model=info.name,
        version=info.version,
        notice=notice,
        chat=info.has_conversations,
        answered=answered,
        fields=form_fields(info.openapi, profile, values),
        examples=[(example.title, json.dumps(example.input)) for example in profile.examples],
        corrects=gateway.corrections is not None,
        admin=gateway.is_admin,
    )


async def _info(gateway: Gateway) -> ModelInfo | None:
    """What is known of the model, for pages that need no server; None if there is none."""
    try:
        return await gateway.model.read()
    except UnavailableError:
        return None


def _code(request: Request, gateway: Gateway, info: ModelInfo | None) -> dict[str, Any]:
    """What the code of a call depends on beside its inputs."""
    has_conversations = info is not None and info.has_conversations
    texts = () if info is None or has_conversations else info.required_texts
    return {
        "base": base_url(request, gateway.settings),
        "openai": has_conversations or bool(texts),
        "texts": texts,
        "keys": gateway.callers is not None,
    }


def _title(prediction: Prediction, info: ModelInfo | None, gateway: Gateway) -> str:
    """The text that a prediction was asked with, which people know it by."""
    first = () if info is None else profile_for(info.input_properties, gateway.settings.playground).first
    texts = (*_said(prediction.input), *(prediction.input.get(name) for name in (*first, *prediction.input)))
    return shortened(next((text for text in texts if isinstance(text, str) and text.strip()), "Prediction"))


def shortened(text: str) -> str:
    """A text on one line, cut off where it is longer."""
    text = " ".join(text[: 4 * _TITLE].split())
    return text if len(text) <= _TITLE else f"{text[: _TITLE - 1]}…"


def _said(inputs: Mapping[str, JsonValue]) -> list[JsonValue]:
    """The contents of a conversation's messages, the last first."""
    messages = inputs.get("messages")
    known = messages if isinstance(messages, list) else []
    return [one.get("content") for one in reversed(known) if isinstance(one, dict)]


async def _find_correction(gateway: Gateway, correction_id: str) -> Correction:
    found = await asyncio.to_thread(corrections_of(gateway).get, correction_id)
    if found is None:
        raise NotFoundError("There is no such correction. It may have been deleted.")
    return found


async def _find(gateway: Gateway, prediction_id: str) -> Prediction:
    prediction = await gateway.runner.get(prediction_id)
    if prediction is None:
        raise NotFoundError("There is no such prediction. It may have been deleted, or the link is incomplete.")
    return prediction


def render_error(request: Request, error: GatewayError) -> Response:
    """The page that says what went wrong."""
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
    environment.filters.update(moment=_moment, as_text=as_text)
    environment.tests["prose"] = lambda text: isinstance(text, str) and not text.lstrip().startswith(("{", "["))
    return environment


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One style sheet or script, with its header Content-Type, and an ETag that changes with the content."""

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


PAGES = Api(
    _router, ("/p/", "/static/", "/versions", "/examples", "/corrections", "/history", "/api", "/readme"), render_error
)
