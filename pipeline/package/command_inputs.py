"""Reads a prediction's inputs from the command line and checks them against the schema that Cog's server uses.

Most error messages are worded as the server's. Only the standard library is imported, so that a mistake is reported at
once.
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.paths import ROOT

_PYTHON_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_HINTS = {
    "boolean": "; write true or false",
    "array": """; write JSON such as '["a", "b"]', or @file.json""",
    "object": """; write JSON such as '{"a": 1}', or @file.json""",
}


class BadInputError(Exception):
    """An input that the server would refuse; the message names it and the limit."""


def read_schema() -> dict[str, Any]:
    """The OpenAPI document that Cog's server checks inputs with."""
    return dict(json.loads((ROOT / ".cog" / "openapi_schema.json").read_text("utf-8")))


def read_inputs(pairs: list[str], schema: dict[str, Any]) -> dict[str, Any]:
    """Values by input name, with defaults filled in.

    Args:
        pairs: the values of `-i`: `name=value` or `name=@file`.

    Raises:
        BadInputError: for the first input that is wrong.
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
        given[name] = read_value(name, _contents(name, text), resolve_rule(properties[name], schema))
    for name in inputs.get("required", []):
        if name not in given:
            raise BadInputError(f"{name} is missing; add -i {name}=…")
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


def read_value(name: str, text: str, rule: dict[str, Any]) -> Any:
    """Convert a text to the rule's type and check the rule's limits.

    Args:
        name: the input's name, for messages.
        text: the value; JSON, unless the rule's type is a string.
        rule: JSON Schema of the input, of `resolve_rule`.

    Raises:
        BadInputError: the value has another type or is over a limit.
    """
    value = _as_type(name, text, rule)
    if "enum" in rule and value not in rule["enum"]:
        raise BadInputError(f"{name}: {json.dumps(value)} is not one of {json.dumps(rule['enum'])}")
    if "minimum" in rule and value < rule["minimum"]:
        raise BadInputError(f"{name}: {value} is less than the minimum of {rule['minimum']}")
    if "maximum" in rule and value > rule["maximum"]:
        raise BadInputError(f"{name}: {value} is greater than the maximum of {rule['maximum']}")
    if len(text) > rule.get("maxLength", len(text)):
        raise BadInputError(f"{name}: {len(text):,} characters, the limit is {rule['maxLength']:,}")
    if len(text) < rule.get("minLength", 0):
        raise BadInputError(f"{name}: {len(text):,} characters, at least {rule['minLength']:,} are needed")
    return value


def _as_type(name: str, text: str, rule: dict[str, Any]) -> Any:
    """Text is taken unchanged, every other type is read as JSON. Of several types the first that fits is used."""
    variants = sorted(rule.get("anyOf", [rule]), key=lambda variant: variant["type"] == "string")
    for variant in variants[:-1]:
        with contextlib.suppress(BadInputError):
            return _as_type(name, text, variant)
    kind = variants[-1]["type"]
    if kind == "string":
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not _PYTHON_TYPES[kind](value):
        raise BadInputError(f'{name}: "{text[:60]}" is not of type "{kind}"{_HINTS.get(kind, "")}')
    items = variants[-1].get("items", {}).get("type")
    if items is not None and not all(map(_PYTHON_TYPES[items], value)):
        raise BadInputError(f'{name}: an item is not of type "{items}"{_HINTS[kind]}')
    return value


def resolve_rule(rule: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The rule with its choices: Cog puts those into a separate schema and refers to it."""
    (reference,) = rule.get("allOf", [{}])
    name = reference.get("$ref", "").rpartition("/")[2]
    if not name:
        return rule
    choices = schema["components"]["schemas"][name]
    return {**rule, "type": choices["type"], "enum": choices["enum"]}


def describe_inputs(schema: dict[str, Any]) -> str:
    """One line per input: name, type, default or `required`, description."""
    inputs = schema["components"]["schemas"]["Input"]
    return "\n".join(
        _describe(name, resolve_rule(rule, schema), name in inputs.get("required", []))
        for name, rule in inputs["properties"].items()
    )


def _describe(name: str, rule: dict[str, Any], is_required: bool) -> str:
    kinds = " or ".join(one["type"] for one in rule.get("anyOf", [rule]))
    kinds = f"one of {', '.join(map(str, rule['enum']))}" if "enum" in rule else kinds
    default = "required" if is_required else f"default {json.dumps(rule.get('default'))}"
    return f"  {name} ({kinds}, {default}): {rule.get('description', '')}"


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{name}: no such input; there are {', '.join(known)}{hint}"
