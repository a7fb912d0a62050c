"""The import rules: what may know of what. Broken ones are listed as `importer -> imported`."""

from __future__ import annotations

import graphlib

import pytest

from serving import engine as seam
from tests.architecture.source_tree import PRODUCT, modules, reachable, within

ENGINES = {
    "paged": ("serving.paged",),
    "vllm": ("serving.vllm_engine",),
    "fake": ("serving.fake_engine", "serving.fake_model"),
}
MODEL = ("serving.models", "serving.layers", "serving.kernels")
INSIDES = (*MODEL, *(package for packages in ENGINES.values() for package in packages))
WITHOUT_TORCH = [
    *(f"serving.paged.{name}" for name in ("scheduler", "block_manager", "request", "draft")),
    *(f"serving.{name}" for name in ("types", "errors", "config", "engine", "text", "checks", "weights")),
    "honeycomb",
]
# what a folder may import of the folders below `serving`
LAYERS = {
    "serving.kernels": ("serving.kernels",),
    "serving.layers": ("serving.kernels", "serving.layers"),
    "serving.models": MODEL,
}


def broken(importers: tuple[str, ...], imported: tuple[str, ...], allowed: tuple[str, ...] = ()) -> list[str]:
    """Imports from the one to the other, for types only included."""
    return [
        f"{module.name} -> {name}"
        for module in modules(*PRODUCT)
        for name in sorted(module.all_imports)
        if within(module.name, importers) and within(name, imported) and not within(name, allowed)
    ]


def test_the_task_and_the_engines_do_not_know_each_other() -> None:
    assert broken(("honeycomb",), ("serving",)) == []
    assert broken(("serving",), ("honeycomb",)) == []


def test_nothing_below_knows_of_what_uses_it() -> None:
    assert broken(("honeycomb", "serving"), ("predict", "scripts", "datagen", "tests")) == []
    assert broken(("predict", "scripts", "datagen"), ("tests",)) == []


def test_those_who_use_engines_know_their_front_only() -> None:
    assert broken(("predict", "scripts", "datagen"), INSIDES) == []


def test_engines_do_not_know_each_other() -> None:
    assert set(ENGINES) == set(seam._ENGINES), "name the new engine's modules here"
    for name, own in ENGINES.items():
        others = tuple(module for other in ENGINES for module in ENGINES[other] if other != name)
        assert broken(own, others) == []


def test_only_create_engine_reaches_an_engine_and_never_by_an_import_statement() -> None:
    engines = tuple(package for packages in ENGINES.values() for package in packages)
    outside = [module.name for module in modules("serving") if not within(module.name, engines)]
    for name in outside:
        assert [line for line in broken((name,), engines) if line.startswith(f"{name} ->")] == []
    for entry in seam._ENGINES.values():
        assert within(entry.module, engines)


@pytest.mark.parametrize("folder", LAYERS)
def test_the_model_is_built_upwards(folder: str) -> None:
    assert broken((folder,), INSIDES, allowed=LAYERS[folder]) == []


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_what_plans_and_what_faces_the_user_starts_without_torch(name: str) -> None:
    """However long the way: a module that imports one that imports torch counts."""
    assert {found.partition(".")[0] for found in reachable(name)} & {"torch", "transformers", "vllm"} == set()


def test_the_scheduler_does_not_know_the_model() -> None:
    planners = tuple(name for name in WITHOUT_TORCH if name.startswith("serving.paged."))
    assert broken(planners, MODEL) == []


def test_transformers_is_for_scripts_and_tests() -> None:
    assert broken(("predict", "serving", "honeycomb"), ("transformers", "peft")) == []


def test_vllm_is_named_in_its_adapter_only() -> None:
    product = ("serving", "honeycomb", "predict")
    assert [line for line in broken(product, ("vllm",)) if not within(line.split()[0], ENGINES["vllm"])] == []


def test_no_module_needs_itself() -> None:
    """Imports are a graph without circles; packages and their parts count as different modules."""
    known = {module.name for module in modules(*PRODUCT)}
    graph = {
        m.name: {name for name in m.imports if name in known and name != m.name} for m in modules(*PRODUCT)
    }
    list(graphlib.TopologicalSorter(graph).static_order())
