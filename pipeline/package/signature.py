"""Reads the inputs of predict.py as Cog's parser does, and writes them into Cog's OpenAPI schema.

Cog's parser silently misreads some Python. Here that is an error that names the line, so that no input loses its
limits unnoticed.
"""

from __future__ import annotations

import ast
import io
import tokenize
from typing import Any

from pipeline.package.input_types import SUPPORTED, InputType, UnsupportedTypeError, read_type

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
