"""A correction: an answer that a person says is wrong, or right, and what the right one is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pydantic import JsonValue


class Kind(StrEnum):
    """What a person says of an answer."""

    CORRECTION = "correction"  # it is wrong, and this is the right one
    REPORT = "report"  # it is wrong, and the person does not know the right one
    EXAMPLE = "example"  # it is right, and worth showing


class State(StrEnum):
    """What an admin has decided."""

    PROPOSED = "proposed"
    ACCEPTED = "accepted"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Correction:
    """One correction. It does not end with the prediction that it is about.

    Args:
        id: the id, as predictions have them.
        kind: what is said.
        input: the inputs by names of predict's parameters.
        given: the answer that the model gave; None where somebody wrote the correction without a prediction.
        wanted: the right answer; None for a report.
        note: why, for people.
        created_at: the time in UTC as ISO 8601 text.
        state: what was decided.
        prediction: the id of the prediction; None for none.
        model, version: what answered.
        adapter: the adapter that answered; None for the plain model.
        owner: the name of the API key that proposed it; None where the gateway asks for no keys.
        shared: whether everybody who has a key sees it.
        decided_by: the name of the admin's key; None for nobody, or where there are no keys.
        decided_at: the time of the last decision.
    """

    id: str
    kind: Kind
    input: Mapping[str, JsonValue]
    given: str | None
    wanted: str | None
    note: str
    created_at: str
    state: State = State.PROPOSED
    prediction: str | None = None
    model: str | None = None
    version: str | None = None
    adapter: str | None = None
    owner: str | None = None
    shared: bool = False
    decided_by: str | None = None
    decided_at: str | None = None
