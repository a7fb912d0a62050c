"""The inputs that Cog reads from predict.py, as its OpenAPI schema states them.

Owns: what Cog 0.23's static parser makes of a signature, for the types we use. Knows nothing of
servers. Cog's parser misreads some Python and says nothing; all of that is an error here, with
its line, so that no input loses a limit unnoticed.

    schema = read_inputs(Path("predict.py").read_text("utf-8"), "Predictor")
"""

from __future__ import annotations

import ast
import io
import tokenize
from typing import Any

_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_KEYS = {
    "default": "default",
    "description": "description",
    "ge": "minimum",
    "le": "maximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "regex": "pattern",
}


class SignatureError(Exception):
    """The signature says something that Cog's parser would take otherwise."""


def read_inputs(source: str, class_name: str) -> dict[str, Any]:
    """`components.schemas.Input` of the document.

    Raises:
        SignatureError: with the line, what is wrong there, and what to write instead.
    """
    function = _find_predict(ast.parse(source), class_name)
    arguments = function.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
        raise _error(
            function, "Cog ignores *args, **kwargs and parameters that are not plain; name each input"
        )
    parameters = arguments.args[1:]
    if len(arguments.defaults) != len(parameters):
        raise _error(function, "give every input an `Input(…)`")
    inputs = [
        _Input(parameter, default, source)
        for parameter, default in zip(parameters, arguments.defaults, strict=True)
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
        type_name, is_optional = self._read_type(parameter)
        values = self._read_call(call)
        if "default" in values and values["default"] is None and not is_optional:
            raise _error(call, f"{self.name}: a default of None needs the type `{type_name} | None`")
        self.is_required = "default" not in values and not is_optional
        title = " ".join(part[:1].upper() + part[1:] for part in self.name.split("_"))
        nullable = {"nullable": True} if is_optional else {}
        self.schema = {"title": title, "type": _TYPES[type_name], **nullable, **values}

    def _read_type(self, parameter: ast.arg) -> tuple[str, bool]:
        text = ast.unparse(parameter.annotation) if parameter.annotation else ""
        name = text[len("Optional[") : -1] if text.startswith("Optional[") else text.replace(" | None", "")
        if name not in _TYPES:
            raise _error(parameter, f"{self.name}: type `{text}` is not one of {', '.join(_TYPES)}")
        return name, name != text

    def _read_call(self, call: ast.expr) -> dict[str, Any]:
        if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "Input"):
            raise _error(call, f"{self.name}: Cog sees only `Input(…)`, from `from cog import Input`")
        if call.args:
            raise _error(call, f"{self.name}: Cog ignores positional arguments of Input; name them")
        unknown = [str(k.arg) for k in call.keywords if k.arg not in _KEYS]
        if unknown:
            raise _error(call, f"{self.name}: use only {', '.join(_KEYS)} in Input, not {', '.join(unknown)}")
        return {_KEYS[str(k.arg)]: self._read_literal(k.value) for k in call.keywords}

    def _read_literal(self, node: ast.expr) -> Any:
        """Cog takes the text of one token as it stands: no names, escapes, underscores or joined strings."""
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
