"""Convert constraints to JSON and back, to send them to another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from serving.constraints import ChoiceConstraint, Constraint, JsonSchemaConstraint, LarkConstraint, RegexConstraint


def to_json(constraint: Constraint) -> dict[str, Any]:
    """The constraint's fields and the name of its type."""
    return {"type": type(constraint).__name__, **asdict(constraint)}


def from_json(value: Mapping[str, Any]) -> Constraint:
    """The constraint that `to_json` converted."""
    fields = {name: part for name, part in value.items() if name != "type"}
    match value["type"]:
        case "LarkConstraint":
            return LarkConstraint(**fields)
        case "JsonSchemaConstraint":
            return JsonSchemaConstraint(**fields)
        case "RegexConstraint":
            return RegexConstraint(**fields)
        case "ChoiceConstraint":
            return ChoiceConstraint(tuple(fields["choices"]))
        case other:
            raise ValueError(f"no constraint is a {other!r}")
