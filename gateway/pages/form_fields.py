"""Turns the JSON Schemas of predict's parameters into the fields of a form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import JsonValue

from gateway.pages.profile import Profile

_LONG: Final = 120  # characters of a default that get a text area
_NUMBERS: Final = ("integer", "number")
_EMPTY: Final[tuple[JsonValue, ...]] = (None, "", [], {})


@dataclass(frozen=True, slots=True)
class FormField:
    """One input of the form.

    Args:
        name: the name of predict's parameter.
        widget: how the field looks: names, long, number, choice, boolean, json or text.
        kind: what the value becomes: string, integer, number, boolean, array, json, or "any" for JSON or else text.
        description: what the input means, for people.
        limits: the allowed values, for people.
        required: whether it must have a value.
        is_main: whether it is always shown.
        value: what the form shows at first, as text.
        default: what the model takes if it is left out, as text; empty for none.
        minimum, maximum: the limits of a number.
        choices: the values of a choice.
    """

    name: str
    widget: str
    kind: str
    description: str
    limits: str
    required: bool
    is_main: bool
    value: str
    default: str
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]


def form_fields(openapi: Mapping[str, Any], profile: Profile, values: Mapping[str, JsonValue]) -> tuple[FormField, ...]:
    """The fields in the order of predict's parameters; inputs without a value show their default."""
    schemas = openapi.get("components", {}).get("schemas", {})
    inputs = schemas.get("Input", {})
    properties = sorted(inputs.get("properties", {}).items(), key=lambda item: item[1].get("x-order", 0))
    required = set(inputs.get("required", ()))
    first = {name for name, _ in properties} & set(profile.first) or required
    if not first and properties:
        first = {properties[0][0]}
    return tuple(
        _field(name, _resolved(schema, schemas), name in required, name in first, profile.widgets.get(name), values)
        for name, schema in properties
    )


def as_text(value: JsonValue) -> str:
    """A value as a form field shows it."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with the references that Cog writes for choices replaced by what they refer to."""
    parts = [schema, *schema.get("allOf", ())]
    found: dict[str, Any] = {}
    for part in parts:
        found.update(schemas.get(str(part.get("$ref", "")).rpartition("/")[2], {}))
    return {**found, **{name: value for name, value in schema.items() if name not in ("allOf", "$ref")}}


def _field(
    name: str,
    schema: Mapping[str, Any],
    required: bool,
    is_main: bool,
    widget: str | None,
    values: Mapping[str, JsonValue],
) -> FormField:
    default = schema.get("default")
    kind = "any" if "anyOf" in schema or "oneOf" in schema else str(schema.get("type", "any"))
    kind = "json" if kind == "object" else kind
    choices = tuple(as_text(choice) for choice in schema.get("enum", ()))
    return FormField(
        name=name,
        widget=widget or _widget(kind, schema, choices, is_main, default),
        kind=kind,
        description=str(schema.get("description", "")),
        limits=_limits(schema),
        required=required,
        is_main=is_main,
        value=as_text(values.get(name, None if default in _EMPTY else default)),
        default="" if default in _EMPTY else as_text(default),
        minimum=schema.get("minimum"),
        maximum=schema.get("maximum"),
        choices=choices,
    )


def _widget(kind: str, schema: Mapping[str, Any], choices: tuple[str, ...], is_main: bool, default: JsonValue) -> str:
    if choices:
        return "choice"
    if kind == "boolean":
        return "boolean"
    if kind in _NUMBERS:
        return "number"
    if kind == "array" and schema.get("items", {}).get("type") == "string":
        return "names"
    if kind in ("array", "json"):
        return "json"
    return "long" if kind == "string" and (is_main or len(as_text(default)) > _LONG) else "text"


def _limits(schema: Mapping[str, Any]) -> str:
    low, high, longest = schema.get("minimum"), schema.get("maximum"), schema.get("maxLength")
    if low is not None and high is not None:
        return f"{low:,} to {high:,}"
    if low is not None:
        return f"{low:,} or more"
    if high is not None:
        return f"{high:,} or less"
    return f"at most {longest:,} characters" if longest is not None else ""
