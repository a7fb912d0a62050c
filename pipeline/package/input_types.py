"""The JSON Schema that Cog 0.23 gives to the Python type of an input.

Found by sending values of each type to the real server. Cog supports strings, numbers and booleans, `dict` for any
JSON object, `list[…]` of these, `Annotated[…, cog.Opaque]` for objects that Cog passes on unchanged, and unions.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, Final

_PRIMITIVES: Final = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "dict": "object"}
_OPAQUE: Final = ("Opaque", "cog.Opaque")
SUPPORTED: Final = "str, int, float, bool, dict, list[…] of these, Annotated[…, cog.Opaque], Optional[…] and unions"


class UnsupportedTypeError(Exception):
    """Cog has no schema for the type; the message is the type's source text."""


@dataclass(frozen=True, slots=True)
class InputType:
    """The type of an input, read from its annotation.

    Args:
        schema: JSON Schema of the value.
        is_optional: whether None is allowed, so that the caller may leave the input out.
        primitive: `str`, `int`, `float` or `bool`, for which Cog has limits; None for other types.
    """

    schema: dict[str, Any]
    is_optional: bool = False
    primitive: str | None = None


def read_type(annotation: ast.expr) -> InputType:
    """The type of one input.

    Raises:
        UnsupportedTypeError: Cog would refuse or misread the type.
    """
    variants = _variants(annotation)
    present = [variant for variant in variants if not _is_none(variant)]
    if not present:
        raise UnsupportedTypeError(ast.unparse(annotation))
    is_optional = len(present) < len(variants)
    schemas = [_schema(variant) for variant in present]
    if len(schemas) > 1:
        return InputType({"anyOf": schemas}, is_optional)
    name = ast.unparse(present[0])
    return InputType(schemas[0], is_optional, name if name in _PRIMITIVES and name != "dict" else None)


def _variants(node: ast.expr) -> list[ast.expr]:
    """The members of `A | B`, `Optional[A]`, or the type itself."""
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return [*_variants(left), *_variants(right)]
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return [*_variants(inner), ast.Constant(None)]
    return [node]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _schema(node: ast.expr) -> dict[str, Any]:
    match node:
        case ast.Name(id=name) if name in _PRIMITIVES:
            return {"type": _PRIMITIVES[name]}
        case ast.Subscript(value=ast.Name(id="dict")):
            return {"type": "object"}
        case ast.Subscript(value=ast.Name(id="list"), slice=item):
            return {"type": "array", "items": _item_schema(item)}
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[inner, marker])):
            if ast.unparse(marker) in _OPAQUE and len(_variants(inner)) == 1:
                return _opaque_schema(inner)
    raise UnsupportedTypeError(ast.unparse(node))


def _item_schema(node: ast.expr) -> dict[str, Any]:
    """Cog refuses lists of lists."""
    schema = _schema(node)
    if schema["type"] == "array":
        raise UnsupportedTypeError(f"list[{ast.unparse(node)}]")
    return schema


def _opaque_schema(inner: ast.expr) -> dict[str, Any]:
    """Schema of an opaque type: an object or an array of objects, whatever the inner type says."""
    if isinstance(inner, ast.Subscript) and ast.unparse(inner.value) == "list":
        return {"type": "array", "items": {"type": "object"}}
    return {"type": "object"}
