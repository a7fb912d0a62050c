"""What each folder may import. Violations are listed as `importer -> imported`, including imports for types only."""

from __future__ import annotations

import ast
import graphlib
import re
from functools import cache

import pytest

from tests.architecture.source_tree import PRODUCT, Module, modules, within

THIS_REPOSITORY = ("serving", "tasks", "pipeline", "lab", "examples", "scripts", "deploy", "predict", "tests")
# What a folder may import of this repository besides itself. `serving.model` connects an engine with a task.
SERVING_FRONT = (
    *(f"serving.{name}" for name in ("types", "errors", "constraints", "grammar", "request_checks", "devices")),
    *(f"serving.{name}" for name in ("config", "engine", "checkpoint", "text", "weights", "drafting", "adapters")),
)
FOUNDATION = ("pipeline.environment", "pipeline.paths", "pipeline.in_flight")
MAY_IMPORT = {
    "serving.text": ("serving.errors", "serving.constraints"),
    "serving.grammar": ("serving.errors", "serving.constraints", "serving.text"),
    "serving.weights": ("serving.errors",),
    "serving.fetching": (),
    "serving.adapters": ("serving.errors", "serving.config", "serving.text", "serving.weights", "serving.fetching"),
    "serving.adapters.adapter_tasks": (
        "serving.adapters",
        "serving.errors",
        "serving.text",
        "serving.weights",
        "tasks",
    ),
    "serving.tracing": ("serving.types",),
    "serving.kernels": ("serving.errors", "serving.weights", "serving.devices"),
    "serving.models": ("serving.errors", "serving.kernels", "serving.weights"),
    "serving.drafting": ("serving.errors", "serving.types", "serving.text", "serving.weights", "serving.kernels"),
    "serving.clients": tuple(f"serving.{name}" for name in ("types", "errors", "text", "request_checks")),
    "serving.engines": (*SERVING_FRONT, "serving.clients", "serving.models", "serving.kernels"),
    "pipeline.paths": (),
    "pipeline.in_flight": (),
    "pipeline.environment": ("pipeline.paths", "serving.devices"),
    "pipeline.weights": (*SERVING_FRONT, *FOUNDATION),
    "pipeline.fetching": (*FOUNDATION, "pipeline.weights", "serving.fetching"),
    "pipeline.locking": (*SERVING_FRONT, *FOUNDATION, "pipeline.weights", "pipeline.fetching", "serving.fetching"),
    "pipeline.train": (
        *(*SERVING_FRONT, *FOUNDATION, "tasks"),
        *("pipeline.weights", "pipeline.answer_format", "pipeline.evaluate", "pipeline.prepare", "pipeline.package"),
        "pipeline.batch",  # reads tables
    ),
    "pipeline.improve": (
        *(*SERVING_FRONT, *FOUNDATION, "tasks"),
        *("pipeline.weights", "pipeline.evaluate", "pipeline.package", "pipeline.train"),
    ),
    "pipeline.answer_format": (*SERVING_FRONT, *FOUNDATION, "tasks", "pipeline.weights"),
    "pipeline.plan": (*SERVING_FRONT, *FOUNDATION, "tasks", "pipeline.weights", "serving.models.config"),
    "pipeline.package": (
        *(*SERVING_FRONT, *FOUNDATION, "tasks", "pipeline.weights", "pipeline.answer_format"),
        *("pipeline.fetching", "pipeline.locking"),
    ),
    "pipeline.prepare": (
        *(*SERVING_FRONT, *FOUNDATION, "tasks"),
        *("pipeline.weights", "pipeline.fetching", "pipeline.package", "pipeline.locking"),
    ),
    "pipeline.batch": (
        *(*SERVING_FRONT, *FOUNDATION, "tasks", "pipeline.weights", "pipeline.package"),
        "serving.model",
    ),
    "pipeline.ray_serve": (
        *(*SERVING_FRONT, *FOUNDATION, "tasks", "pipeline.weights", "pipeline.package", "pipeline.batch"),
        "serving.model",
    ),
    "pipeline.publish": (
        *SERVING_FRONT,
        *FOUNDATION,
        "pipeline.weights",
        "pipeline.fetching",
        "pipeline.package",
        "pipeline.prepare",
        "serving.fetching",
    ),
    "pipeline.evaluate": (*SERVING_FRONT, *FOUNDATION, "tasks", "pipeline.weights", "serving.model"),
    "pipeline.compare": (*SERVING_FRONT, *FOUNDATION, "tasks", "pipeline.weights", "pipeline.evaluate"),
    "examples": ("tasks", *SERVING_FRONT),
    "gateway": (),  # it knows Cog's HTTP API, and no engine
    "predict": ("serving.predictor",),
    "deploy": (*SERVING_FRONT, "serving.model", "pipeline.in_flight", "pipeline.batch", "pipeline.package"),
    "lab": ("serving", "tasks", "gateway", "pipeline", "predict"),  # it measures any part, and only scripts import it
    "scripts": (*SERVING_FRONT, "tasks", "pipeline", "examples", "lab"),
}
# Further imports of single modules, each with its reason.
ALSO = {
    "pipeline.package.local_prediction -> predict": "it runs the package's Predictor without a server",
}
# These import modules whose names are data. All other imports are checked by the rules above.
BY_NAME = {"serving.engine", "tasks.task"}


@cache
def beyond() -> dict[str, set[str]]:
    """By folder, its imports from other parts of the repository that are not allowed."""
    found: dict[str, set[str]] = {folder: set() for folder in MAY_IMPORT}
    for module in modules(*PRODUCT):
        if folder := _place(module.name):
            others = {name for name in module.all_imports if within(name, THIS_REPOSITORY)}
            wrong = {name for name in others if not within(name, (folder, *MAY_IMPORT[folder]))}
            found[folder] |= {f"{module.name} -> {name}" for name in wrong}
    return found


def _place(name: str) -> str:
    """The innermost folder of `MAY_IMPORT` that a module is in; empty for none."""
    return max((folder for folder in MAY_IMPORT if within(name, (folder,))), key=len, default="")


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_go_downward(folder: str) -> None:
    assert beyond()[folder] - ALSO.keys() == set()


def test_every_exception_is_needed() -> None:
    assert set().union(*beyond().values()) == ALSO.keys()


def test_every_folder_has_a_rule() -> None:
    """A new folder needs a line in `MAY_IMPORT`. The rules of tasks are in test_imports.py."""
    places = (*MAY_IMPORT, "tasks", "pipeline.__init__")
    packages = {module.name for module in modules(*PRODUCT) if module.path.parent.name not in ("serving", "scripts")}
    assert {name for name in packages if name != "pipeline" and not within(name, places)} == set()


def test_no_module_imports_itself_in_a_circle() -> None:
    """The import graph has no circles, including imports inside functions and for types only."""
    known = {module.name for module in modules(*PRODUCT)}
    graph = {m.name: {name for name in m.all_imports if name in known and name != m.name} for m in modules(*PRODUCT)}
    list(graphlib.TopologicalSorter(graph).static_order())


def test_only_the_two_seams_import_by_name() -> None:
    assert {module.name for module in modules(*PRODUCT) if imports_by_name(module)} == BY_NAME


def imports_by_name(module: Module) -> bool:
    """Whether a file calls `importlib.import_module` or a loader of importlib, however it got it."""
    names = {"import_module", "spec_from_file_location", "module_from_spec", "run_module", "run_path"}
    if not any(name in module.text for name in names):
        return False
    found = {node.attr for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
    found |= {alias.name for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    return bool(found & names)


def test_tests_import_no_tests() -> None:
    """Code that several tests share is in a module that is not a test."""
    imports = re.compile(r"^\s*(?:from|import)\b.*\btest_\w+", re.MULTILINE)
    assert {module.name for module in modules("tests") if imports.search(module.text)} == set()
