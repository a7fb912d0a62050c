"""The routes of the pages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import JsonValue

from gateway.api import Api
from gateway.cache.answer_cache import ORIGINAL
from gateway.errors import GatewayError, NotFoundError, UnauthorizedError, UnavailableError
from gateway.gateway import Gateway, get_gateway, get_whole_gateway
from gateway.pages.form_fields import as_text, form_fields
from gateway.pages.profile import profile_for
from gateway.pages.rendering import output_text, render_page
from gateway.pages.static_files import static_files
from gateway.predictions import Prediction
from gateway.replicate.objects import base_url

_router = APIRouter()
_START_SECONDS = "2"  # until a page that waits for the model asks again


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


PAGES = Api(_router, ("/p/", "/static/"), _render_error)
