"""Reads the inputs of predict.py as Cog's parser does, and writes them into Cog's OpenAPI document.

Cog's parser silently misreads some Python. Here that is an error that names the line, so that no input loses its
limits unnoticed. The JSON Schema that Cog 0.23 gives to a type was found by sending values of each type to the real
server. Cog supports strings, numbers and booleans, `dict` for any JSON object, `list[…]` of these,
`Annotated[…, cog.Opaque]` for objects that Cog passes on unchanged, and unions.
"""

from __future__ import annotations

import ast
import io
import json
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_PRIMITIVES: Final = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "dict": "object"}
_OPAQUE: Final = ("Opaque", "cog.Opaque")
SUPPORTED: Final = "str, int, float, bool, dict, list[…] of these, Annotated[…, cog.Opaque], Optional[…] and unions"
_KEYS = {
    "default": "default",
    "description": "description",
    "ge": "minimum",
    "le": "maximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "regex": "pattern",
    "choices": "enum",
}
_LIMITED = {
    "ge": ("int", "float"),
    "le": ("int", "float"),
    "min_length": ("str",),
    "max_length": ("str",),
    "regex": ("str",),
    "choices": ("str", "int"),
}


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
    """The schema of an item of a list; Cog refuses lists of lists."""
    schema = _schema(node)
    if schema["type"] == "array":
        raise UnsupportedTypeError(f"list[{ast.unparse(node)}]")
    return schema


def _opaque_schema(inner: ast.expr) -> dict[str, Any]:
    """Schema of an opaque type: an object or an array of objects, whatever the inner type says."""
    if isinstance(inner, ast.Subscript) and ast.unparse(inner.value) == "list":
        return {"type": "array", "items": {"type": "object"}}
    return {"type": "object"}


class SignatureError(Exception):
    """Cog's parser would misread the signature."""


def write_inputs(document: dict[str, Any], source: str, class_name: str) -> None:
    """Put the inputs of predict.py into Cog's OpenAPI document; each input with choices gets a separate schema.

    Raises:
        SignatureError: see `read_inputs`.
    """
    schemas = document["components"]["schemas"]
    for name in [name for name, schema in schemas.items() if "enum" in schema and name != "Status"]:
        del schemas[name]
    inputs = read_inputs(source, class_name)
    schemas["Input"] = inputs
    for name, rule in inputs["properties"].items():
        if "enum" in rule:
            schemas[name] = {
                "title": name,
                "description": "An enumeration.",
                "enum": rule.pop("enum"),
                "type": rule.pop("type"),
            }
            del rule["title"]
            rule["allOf"] = [{"$ref": f"#/components/schemas/{name}"}]


def read_inputs(source: str, class_name: str) -> dict[str, Any]:
    """`components.schemas.Input` of the document, with choices as `enum`.

    Raises:
        SignatureError: names the line, what is wrong there, and what to write instead.
    """
    function = _find_predict(ast.parse(source), class_name)
    arguments = function.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
        raise _error(function, "Cog ignores *args, **kwargs, keyword- and positional-only ones; name each input")
    parameters = arguments.args[1:]
    if len(arguments.defaults) != len(parameters):
        raise _error(function, "give every input an `Input(…)`")
    inputs = [
        _Input(parameter, default, source) for parameter, default in zip(parameters, arguments.defaults, strict=True)
    ]
    properties = {i.name: {"x-order": order, **i.schema} for order, i in enumerate(inputs)}
    required = [i.name for i in inputs if i.is_required]
    return {"title": "Input", "type": "object", "properties": properties, "required": required}


def _find_predict(module: ast.Module, class_name: str) -> ast.AsyncFunctionDef:
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for member in node.body:
                if isinstance(member, ast.AsyncFunctionDef) and member.name == "predict":
                    return member
    raise SignatureError(f"there is no class {class_name} with an `async def predict`")


class _Input:
    """One parameter and its `Input(…)`."""

    def __init__(self, parameter: ast.arg, call: ast.expr, source: str) -> None:
        self.name = parameter.arg
        self._source = source
        kind = self._read_type(parameter)
        values = self._read_call(call, kind)
        if "default" in values and values["default"] is None and not kind.is_optional:
            text = ast.unparse(parameter.annotation) if parameter.annotation else ""
            raise _error(call, f"{self.name}: a default of None needs the type `{text} | None`")
        self.is_required = "default" not in values and not kind.is_optional
        title = " ".join(part[:1].upper() + part[1:] for part in self.name.split("_"))
        nullable = {"nullable": True} if kind.is_optional else {}
        self.schema = {"title": title, **kind.schema, **nullable, **values}

    def _read_type(self, parameter: ast.arg) -> InputType:
        try:
            if parameter.annotation is None:
                raise UnsupportedTypeError("")
            return read_type(parameter.annotation)
        except UnsupportedTypeError as error:
            raise _error(parameter, f"{self.name}: type `{error}` is not one of {SUPPORTED}") from error

    def _read_call(self, call: ast.expr, kind: InputType) -> dict[str, Any]:
        if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "Input"):
            raise _error(call, f"{self.name}: Cog sees only `Input(…)`, from `from cog import Input`")
        if call.args:
            raise _error(call, f"{self.name}: Cog ignores positional arguments of Input; name them")
        unknown = [str(k.arg) for k in call.keywords if k.arg not in _KEYS]
        if unknown:
            raise _error(call, f"{self.name}: use only {', '.join(_KEYS)} in Input, not {', '.join(unknown)}")
        for keyword in call.keywords:
            limited = _LIMITED.get(str(keyword.arg))
            if limited is not None and kind.primitive not in limited:
                raise _error(call, f"{self.name}: {keyword.arg} is for {' and '.join(limited)} only")
        values = {_KEYS[str(k.arg)]: self._read_literal(k.value) for k in call.keywords}
        if len(values.get("enum", "ab")) < 2:
            raise _error(call, f"{self.name}: Cog needs at least two choices")
        return values

    def _read_literal(self, node: ast.expr) -> Any:
        """The value of a literal. Cog reads the text of one token: no names, escapes, underscores or joined strings."""
        if isinstance(node, ast.List):
            return [self._read_literal(item) for item in node.elts]
        if isinstance(node, ast.Dict) and not node.keys:
            return {}
        text = ast.get_source_segment(self._source, node) or ""
        tokens = [t.string for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.string.strip()]
        is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
        misread = "\\" in text or text[:1] in "bBfFuU" if is_string else "_" in text
        if misread or "".join(tokens) != text or len(tokens) > 1 + tokens[0].count("-"):
            raise _error(node, f"{self.name}: Cog would misread `{text}`; write one plain literal")
        try:
            return ast.literal_eval(node)
        except ValueError:
            raise _error(node, f"{self.name}: Cog would misread `{text}`; write its value here") from None


def _error(node: ast.AST, problem: str) -> SignatureError:
    return SignatureError(f"predict.py line {getattr(node, 'lineno', '?')}: {problem}")


def write_schema(package: Path) -> Path:
    """Bring .cog/openapi_schema.json in the package's folder up to date; returns its path.

    Only the inputs are written; the rest of the document is the same for every model that streams text with
    Cog 0.23.

    Raises:
        SignatureError: Cog would misread the signature.
    """
    schema, text = current_schema(package)
    schema.write_text(text, "utf-8")
    return schema


def current_schema(package: Path) -> tuple[Path, str]:
    """The schema's file, and what it should hold.

    Raises:
        SignatureError: the signature says something that Cog would read otherwise.
    """
    schema = package / ".cog" / "openapi_schema.json"
    document = json.loads(schema.read_text("utf-8"))
    write_inputs(document, (package / "predict.py").read_text("utf-8"), "Predictor")
    return schema, json.dumps(document, indent=2, ensure_ascii=False) + "\n"
