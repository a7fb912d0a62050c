"""The import rules between engines, tasks and the rest. Violations are listed as `importer -> imported`."""

from __future__ import annotations

import pytest

from serving import engine as seam
from tests.architecture.source_tree import PRODUCT, ROOT, modules, reachable, within

# The folder or the module of each engine, by its name.
ENGINES = {name: (".".join(entry.module.split(".")[:3]),) for name, entry in seam.ENGINES.items()}
MODEL = ("serving.models", "serving.kernels")
INSIDES = (*MODEL, *(package for packages in ENGINES.values() for package in packages))
WITHOUT_TORCH = [
    *(f"serving.engines.paged.{name}" for name in ("scheduler", "block_manager", "request")),
    *(f"serving.{name}" for name in ("types", "errors", "config", "engine", "text", "request_checks", "weights")),
    "tasks",
]


def broken(importers: tuple[str, ...], imported: tuple[str, ...], allowed: tuple[str, ...] = ()) -> list[str]:
    """Imports of `imported` in `importers`, including imports for types only."""
    return [
        f"{module.name} -> {name}"
        for module in modules(*PRODUCT)
        for name in sorted(module.all_imports)
        if within(module.name, importers) and within(name, imported) and not within(name, allowed)
    ]


def test_tasks_and_engines_do_not_import_each_other() -> None:
    """They share types, constraints, text and errors; only the model connects a task with an engine."""
    shared = ("serving.types", "serving.constraints", "serving.errors", "serving.grammar", "serving.text")
    tasks = ("tasks.honeycomb", "tasks.schema", "tasks.chat")
    templates = {f"{task}.predict -> serving.predictor" for task in tasks}  # predict.py of new packages
    assert set(broken(("tasks",), ("serving",), allowed=shared)) == templates
    assert broken(("tasks", "serving", "pipeline"), tuple(f"{task}.predict" for task in tasks)) == []
    importers = ("serving.model", "serving.adapters.adapter_tasks", "serving.predictor")
    assert {line.split()[0] for line in broken(("serving",), ("tasks",))} == set(importers)
    for task in tasks:
        assert broken((task,), tuple(other for other in tasks if other != task)) == []
    assert broken(("tasks.task", "tasks.evaluation"), tasks) == []


def test_serving_does_not_mention_the_default_task() -> None:
    """Its names, weights and words belong to `tasks.honeycomb` and `examples`. Comments and C++ files count too."""
    files = [path for path in (ROOT / "serving").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    named = [str(path.relative_to(ROOT)) for path in files if b"honeycomb" in path.read_bytes().lower()]
    assert len(files) > 50
    assert named == []


def test_nothing_outside_tests_imports_tests() -> None:
    assert broken(tuple(name.removesuffix(".py") for name in PRODUCT), ("tests",)) == []


def test_engines_do_not_import_each_other() -> None:
    for name, own in ENGINES.items():
        others = tuple(module for other in ENGINES for module in ENGINES[other] if other != name)
        assert broken(own, others) == []


def test_only_create_engine_imports_an_engine_and_not_by_an_import_statement() -> None:
    engines = tuple(package for packages in ENGINES.values() for package in packages)
    outside = [module.name for module in modules("serving") if not within(module.name, engines)]
    for name in outside:
        assert [line for line in broken((name,), engines) if line.startswith(f"{name} ->")] == []
    for entry in seam.ENGINES.values():
        assert within(entry.module, engines)


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_the_scheduler_and_the_user_s_commands_import_no_torch(name: str) -> None:
    """Indirect imports of torch count as well."""
    assert name in {module.name for module in modules(*PRODUCT)}
    assert {found.partition(".")[0] for found in reachable(name)} & {"torch", "transformers", "vllm"} == set()


def test_the_scheduler_does_not_import_the_model() -> None:
    planners = tuple(name for name in WITHOUT_TORCH if name.startswith("serving.engines.paged."))
    assert broken(planners, MODEL) == []


def test_only_scripts_and_tests_import_transformers() -> None:
    assert broken(("predict", "serving", "tasks"), ("transformers", "peft")) == []


def test_only_the_vllm_engine_imports_vllm() -> None:
    product = ("serving", "tasks", "predict")
    assert [line for line in broken(product, ("vllm",)) if not within(line.split()[0], ENGINES["vllm"])] == []
