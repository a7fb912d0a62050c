"""The HTTP API of corrections: propose one about a prediction, list, decide, delete, and check an answer before."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Final, Literal, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from gateway.corrections.correction import Correction, Kind, State
from gateway.corrections.correction_file import CorrectionFile
from gateway.corrections.lines import as_text
from gateway.errors import ForbiddenError, InvalidInputError, NotFoundError, UnavailableError
from gateway.gateway import Gateway, TheGateway
from gateway.http.api import Api
from gateway.http.bodies import read_body
from gateway.predictions.prediction import Prediction, Status, adapter_of, new_id, now, output_text
from gateway.replicate.objects import base_url, render_problem
from gateway.replicate.requests import decode_cursor, encode_cursor
from gateway.upstream.model_server import CHECKED

_router = APIRouter(prefix="/v1/corrections")
MAX_NOTE: Final = 2000  # characters
_Choice = TypeVar("_Choice", Kind, State)
_Value = TypeVar("_Value")
_Result = TypeVar("_Result")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProposalBody(_Body):
    """The body that proposes a correction."""

    prediction: str
    kind: Kind = Kind.CORRECTION
    wanted: JsonValue = None
    note: str = Field("", max_length=MAX_NOTE)
    state: Literal[State.PROPOSED, State.ACCEPTED] = State.PROPOSED


class CheckBody(_Body):
    """The body that asks whether an answer is one of the prediction's model."""

    prediction: str
    wanted: JsonValue


class DecisionBody(_Body):
    """The body that decides on a correction; what is left out stays."""

    state: State | None = None
    note: str | None = Field(None, max_length=MAX_NOTE)
    shared: bool | None = None


@_router.post("")
async def propose(request: Request, gateway: TheGateway) -> Response:
    """Keep a correction of a prediction that the caller can see."""
    file = corrections_of(gateway)
    body = await read_body(request, ProposalBody, max_bytes=gateway.settings.max_body_bytes)
    if body.state is not State.PROPOSED:
        _check_admin(gateway)
    prediction = await _ended(gateway, body.prediction)
    given = output_text(prediction.output)
    accepted = body.state is State.ACCEPTED
    caller = None if gateway.caller is None else gateway.caller.name
    correction = Correction(
        id=new_id(),
        kind=body.kind,
        input=prediction.input,
        given=given,
        wanted=await _wanted(gateway, body, prediction, given),
        note=body.note,
        created_at=now(),
        state=body.state,
        prediction=prediction.id,
        model=prediction.model,
        version=prediction.version,
        adapter=adapter_of(prediction.input),
        owner=caller,
        decided_by=caller if accepted else None,
        decided_at=now() if accepted else None,
    )
    await _written(file.add, correction)
    return JSONResponse(correction_object(correction), 201)


@_router.post("/check")
async def check(request: Request, gateway: TheGateway) -> Response:
    """Whether an answer is one of the prediction's model, and how the model would write it. Nothing is kept."""
    body = await read_body(request, CheckBody, max_bytes=gateway.settings.max_body_bytes)
    prediction = await _ended(gateway, body.prediction)
    try:
        wanted, is_checked = await _checked(gateway, prediction, as_text(body.wanted))
    except InvalidInputError as error:
        return JSONResponse({"valid": False, "wanted": None, "problem": error.fields[0].message})
    return JSONResponse({"valid": True if is_checked else None, "wanted": wanted, "problem": None})


@_router.get("")
async def list_corrections(
    request: Request,
    gateway: TheGateway,
    kind: str | None = None,
    state: str | None = None,
    prediction: str | None = None,
    cursor: str | None = None,
) -> Response:
    """A page of corrections, newest first, of one kind, state or prediction where these are given."""
    file = corrections_of(gateway)
    older = None if cursor is None else decode_cursor(cursor).get("older_than")
    page = await asyncio.to_thread(
        file.page,
        kind=_one_of(Kind, "kind", kind),
        state=_one_of(State, "state", state),
        prediction=prediction,
        older_than=older,
    )
    link = None
    if page.older is not None:
        url = request.url.include_query_params(cursor=encode_cursor("older", page.older))
        link = f"{base_url(request, gateway.settings)}{url.path}?{url.query}"
    return JSONResponse({"next": link, "results": [correction_object(one) for one in page.corrections]})


@_router.get("/{correction_id}")
async def get_correction(gateway: TheGateway, correction_id: str) -> Response:
    """One correction."""
    return JSONResponse(correction_object(await _find(gateway, correction_id)))


@_router.patch("/{correction_id}")
async def decide(request: Request, gateway: TheGateway, correction_id: str) -> Response:
    """Accept or reject a correction, share it with all keys, or change its note; for admins."""
    body = await read_body(request, DecisionBody, max_bytes=gateway.settings.max_body_bytes)
    correction = await _find(gateway, correction_id)
    _check_admin(gateway)
    changes = body.model_dump(exclude_none=True)
    if body.state is not None:
        changes |= {"decided_by": gateway.caller and gateway.caller.name, "decided_at": now()}
    changed = replace(correction, **changes)
    await _written(corrections_of(gateway).change, changed)
    return JSONResponse(correction_object(changed))


@_router.delete("/{correction_id}")
async def delete(gateway: TheGateway, correction_id: str) -> Response:
    """Delete a correction for ever: one's own, or as an admin any."""
    if not await _written(corrections_of(gateway).remove, correction_id):
        raise NotFoundError(f"you have no correction {correction_id[:100]}")
    return Response(status_code=204)


def correction_object(correction: Correction) -> dict[str, JsonValue]:
    """A correction as the API shows it."""
    return asdict(correction)


def corrections_of(gateway: Gateway) -> CorrectionFile:
    """The corrections that the caller may see.

    Raises:
        ForbiddenError: the gateway keeps nothing.
    """
    if gateway.corrections is None:
        raise ForbiddenError("this gateway keeps nothing (GATEWAY_KEEP=false), and so no corrections")
    return gateway.corrections


async def _ended(gateway: Gateway, prediction_id: str) -> Prediction:
    prediction = await gateway.runner.get(prediction_id)
    if prediction is None:
        raise InvalidInputError.at(("prediction",), f"there is no prediction {prediction_id[:100]}", "unknown")
    if not prediction.status.is_final:
        raise InvalidInputError.at(("prediction",), "still runs; wait for its end")
    return prediction


async def _wanted(gateway: Gateway, body: ProposalBody, prediction: Prediction, given: str) -> str | None:
    """The right answer that a body gives, checked where the model's server can.

    Raises:
        InvalidInputError: the body's kind asks for another value, or it is no answer of the model.
        UnavailableError: no server can check it now.
    """
    if body.kind is Kind.CORRECTION:
        if body.wanted is None:
            raise InvalidInputError.at(("wanted",), "Field required", "missing")
        wanted, _ = await _checked(gateway, prediction, as_text(body.wanted))
        if wanted == given:
            raise InvalidInputError.at(
                ("wanted",), 'is the answer that was given; for a good answer, kind is "example"'
            )
        return wanted
    if body.wanted is not None:
        raise InvalidInputError.at(("wanted",), f"a {body.kind} has none; leave it out, or send a correction")
    if body.kind is Kind.REPORT:
        return None
    if prediction.status is not Status.SUCCEEDED:
        raise InvalidInputError.at(("prediction",), f"its status is {prediction.status}; an example needs an answer")
    return given


async def _checked(gateway: Gateway, prediction: Prediction, answer: str) -> tuple[str, bool]:
    """An answer as the model writes it, and whether a server has checked it: others than this project's cannot.

    Raises:
        InvalidInputError: it is no answer of the model.
        UnavailableError: no server can check it now.
    """
    said = await gateway.runner.check_answer(prediction, answer)
    if said.metrics.get(CHECKED) is True:
        if said.status is Status.SUCCEEDED:
            return output_text(said.output), True
        raise InvalidInputError.at(("wanted",), said.error or "is no answer of this model")
    if said.status is Status.SUCCEEDED:  # the server has written an answer of its own
        return answer, False
    raise UnavailableError(f"the answer cannot be checked: {said.error}", retry_after=2)


async def _find(gateway: Gateway, correction_id: str) -> Correction:
    correction = await asyncio.to_thread(corrections_of(gateway).get, correction_id)
    if correction is None:
        raise NotFoundError(f"there is no correction {correction_id[:100]}")
    return correction


def _check_admin(gateway: Gateway) -> None:
    if not gateway.is_admin:
        raise ForbiddenError("only an admin's key decides on corrections; scripts/keys create NAME --admin makes one")


def _one_of(choices: type[_Choice], name: str, value: str | None) -> _Choice | None:
    if value is None:
        return None
    try:
        return choices(value)
    except ValueError as error:
        raise InvalidInputError.at((name,), f"{value[:100]!r} is not one of {', '.join(choices)}", "unknown") from error


async def _written(write: Callable[[_Value], _Result], value: _Value) -> _Result:
    """What a change of the file returns.

    Raises:
        UnavailableError: the file cannot be written.
    """
    try:
        return await asyncio.to_thread(write, value)
    except sqlite3.Error as error:
        raise UnavailableError(f"corrections cannot be kept: {error}; see the gateway's database") from error


CORRECTIONS = Api(_router, ("/v1/corrections",), render_problem)
