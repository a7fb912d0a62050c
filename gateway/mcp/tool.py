"""Shows the model as a tool: the schemas of what it takes and gives, and a prediction as the result of a call."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import JsonValue

from gateway.predictions.prediction import Prediction, Status
from gateway.upstream.model_info import ModelInfo

Object = dict[str, JsonValue]
_SCHEMAS: Final = "#/components/schemas/"
_VALUES: Final = ("default", "enum", "const", "example")  # whose values are no schemas
_LIMIT: Final = 64  # of a tool's name, in the APIs of models that are told of tools


def tool_name(info: ModelInfo) -> str:
    """The name of the tool: that of the model, without its owner and with the characters that all hosts take."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", info.name.partition("/")[2])[:_LIMIT]


def tool_object(info: ModelInfo) -> Object:
    """The tool with the JSON Schemas of its inputs and of its result."""
    taken, with_taken = _schema(info, "Input")
    given, with_given = ({"type": "string"}, {}) if _is_text(info) else _schema(info, "Output")
    result: Object = {"type": "object", "properties": {"output": given}, "required": ["output"], **with_given}
    return {
        "name": tool_name(info),
        "title": info.name,
        "description": f"Asks the language model {info.name}; its answer is `output`.",
        "inputSchema": {"type": "object", **taken, "additionalProperties": False, **with_taken},
        "outputSchema": result,
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    }


def result_object(prediction: Prediction, info: ModelInfo) -> Object:
    """The result of a call: the output as a text and as an object, or why there is none, which a model can read."""
    if prediction.status is not Status.SUCCEEDED:
        reason = "the prediction was cancelled" if prediction.status is Status.CANCELED else prediction.error
        return error_result(reason or "the prediction failed")
    output = prediction.output
    if _is_text(info):
        output = "".join(map(str, output)) if isinstance(output, list) else str(output or "")
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return {"content": [{"type": "text", "text": text}], "structuredContent": {"output": output}, "isError": False}


def error_result(text: str) -> Object:
    """The result of a call that failed."""
    return {"content": [{"type": "text", "text": text}], "isError": True}


def _is_text(info: ModelInfo) -> bool:
    """Whether the output is one text, which may come in pieces."""
    schema = info.schemas.get("Output", {})
    return bool(schema.get("type") == "string" or schema.get("x-cog-array-display") == "concatenate")


def _schema(info: ModelInfo, name: str) -> tuple[Object, Object]:
    """One of the schemas of Cog's document as a JSON Schema, and those that it refers to as `$defs`, if any."""
    own, found = _plain(info.schemas.get(name, {})), dict[str, Any]()
    seen = json.dumps(own)
    while wanted := [one for one in re.findall(r'"#/\$defs/([^"]+)"', seen) if one not in found]:
        found |= {one: _plain(info.schemas.get(one, {})) for one in wanted}
        seen = json.dumps(found)
    return own, {"$defs": found} if found else {}


def _plain(schema: Any) -> Any:
    """A schema of OpenAPI 3.0 as a JSON Schema: its references, and its word for what may be null."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    plain = {key: value if key in _VALUES else _plain(value) for key, value in schema.items()}
    if isinstance(properties := schema.get("properties"), Mapping):
        plain["properties"] = {name: _plain(one) for name, one in properties.items()}
    for name in ("nullable", "x-order"):
        if not isinstance(plain.get(name), Mapping):  # else it is a property's name
            plain.pop(name, None)
    if isinstance(reference := plain.get("$ref"), str):
        plain["$ref"] = reference.replace(_SCHEMAS, "#/$defs/")
    if schema.get("nullable") is True and isinstance(plain.get("type"), str):
        plain["type"] = [plain["type"], "null"]
    return plain
