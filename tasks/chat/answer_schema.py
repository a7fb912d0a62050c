"""Reads the JSON Schema from the forms in which callers send it."""

from __future__ import annotations

import json
from typing import Any, Final

from tasks.bounds import narrowed
from tasks.errors import InputError
from tasks.json_text import parse_json

_BESIDE_SCHEMA: Final = {"type", "name", "strict", "description"}
_HINT: Final = 'send a JSON Schema, or {"type": "json_schema", "json_schema": {"name": "…", "schema": {…}}}'


def read_answer_schema(value: dict[str, Any] | bool | str | None) -> str | None:
    """The schema as JSON text, narrowed by `tasks.bounds`; None for free text.

    Args:
        value: a schema, or one of OpenAI's wrappers around it: `response_format`, its `json_schema`, or `text.format`;
            also as JSON text. The wrapper must be removed: as a schema it would allow any JSON. The schema inside a
            wrapper may be JSON text too, which keeps the order of its properties: Cog's server sorts those of objects.

    Raises:
        InputError: the value has none of these forms.
    """
    if value is None or value == "":
        return None
    if isinstance(value, str):
        value = _parse(value)
    match value:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return '{"type": "object"}'
        case {"type": "json_schema", "json_schema": {"schema": schema}} | {"format": {"schema": schema}}:
            pass
        case {"schema": schema, **others} if others.keys() <= _BESIDE_SCHEMA:
            pass
        case _:
            schema = value
    if isinstance(schema, str):
        schema = _parse(schema)
    if not isinstance(schema, dict | bool) or (isinstance(schema, dict) and schema.get("type") == "json_schema"):
        raise InputError("json_schema", f"{json.dumps(value)[:80]} contains no schema", _HINT)
    return json.dumps(_narrowed(schema), ensure_ascii=False)


def _narrowed(schema: dict[str, Any] | bool) -> dict[str, Any] | bool:
    try:
        return narrowed(schema) if isinstance(schema, dict) else schema
    except RecursionError:
        return schema  # the compiler refuses a schema that is nested so deeply, and says why


def _parse(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise InputError("json_schema", f"is not JSON: {error}", _HINT) from error
