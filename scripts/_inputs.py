"""Inputs of a prediction from the command line, held to the schema that Cog's server uses.

Owns: reading `name=value` and `name=@file`, and the rules of the schema with the server's words.
Knows nothing of what the inputs mean. Standard library only, so that a mistake is told at once.

    inputs = read_inputs(["nlq=slowest traces", "cols=@columns.txt"], schema)
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

_READERS = {"integer": int, "number": float}


class BadInputError(Exception):
    """An input that the server would refuse; the message names it and the limit."""


def read_inputs(pairs: list[str], schema: dict[str, Any]) -> dict[str, Any]:
    """Values by name, defaults filled in.

    Args:
        pairs: what stood after each `-i`.
        schema: the OpenAPI document.

    Raises:
        BadInputError: at the first that is wrong.
    """
    inputs = schema["components"]["schemas"]["Input"]
    properties: dict[str, Any] = inputs["properties"]
    given: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise BadInputError(f"{pair!r} has no '='; write -i name=value or -i name=@file")
        if name not in properties:
            raise BadInputError(_unknown(name, list(properties)))
        if name in given:
            raise BadInputError(f"{name}: given twice")
        given[name] = _read(name, _contents(name, text), properties[name])
    for name in inputs.get("required", []):
        if name not in given:
            raise BadInputError(f"{name}: Field required; add -i {name}=…")
    defaults = {name: rule["default"] for name, rule in properties.items() if "default" in rule}
    return {**defaults, **given}


def _contents(name: str, text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise BadInputError(f"{name}: cannot read {text[1:]}: {reason}") from error


def _read(name: str, text: str, rule: dict[str, Any]) -> Any:
    """The value as the rule's type, within its limits."""
    kind = rule["type"]
    try:
        value = _READERS.get(kind, str)(text)
    except ValueError:
        raise BadInputError(f'{name}: "{text[:60]}" is not of type "{kind}"') from None
    if "minimum" in rule and value < rule["minimum"]:
        raise BadInputError(f"{name}: {value} is less than the minimum of {rule['minimum']}")
    if "maximum" in rule and value > rule["maximum"]:
        raise BadInputError(f"{name}: {value} is greater than the maximum of {rule['maximum']}")
    return value


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{name}: no such input; there are {', '.join(known)}{hint}"
