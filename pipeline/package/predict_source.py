"""Makes a new package's predict.py from its task's template and the inputs that its task.json names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_TEMPLATES: Final = Path(__file__).parent / "templates"
PREDICT: Final = {
    "honeycomb": _TEMPLATES / "predict_honeycomb.py",
    "schema": _TEMPLATES / "predict_schema.py",
    "chat": _TEMPLATES / "predict_chat.py",
}
_BASE: Final = "from serving.predictor import"
CODE_IMPORT: Final = "import package  # the way to the code, see package.py"
_PARAMETER: Final = re.compile(r"^        text: str = .*\n", re.MULTILINE)
_ARGUMENT: Final = re.compile(r"^            text=text,\n", re.MULTILINE)


def predict_source(task: str, inputs: Sequence[str]) -> str:
    """Python source of predict.py.

    Args:
        task: its name.
        inputs: names of a schema task's text inputs; empty for other tasks.
    """
    source = PREDICT[task].read_text("utf-8")
    if task != "schema":
        return source
    parameter, argument = _PARAMETER.search(source), _ARGUMENT.search(source)
    assert parameter is not None and argument is not None, "the template has exactly one text input"
    source = source.replace(parameter[0], "".join(parameter[0].replace("text:", f"{name}:", 1) for name in inputs))
    return source.replace(argument[0], "".join(argument[0].replace("text", name) for name in inputs))


def package_source(task: str, inputs: Sequence[str]) -> str:
    """The same for a package, which has the code as a wheel."""
    source = predict_source(task, inputs).replace("scripts/", "./package.py ")
    return source.replace(_BASE, f"{CODE_IMPORT}\n\n{_BASE}")
