"""Writes the inputs that Cog reads from predict.py into its OpenAPI document."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.package.signature import write_inputs


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
