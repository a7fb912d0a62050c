"""Every direct pin is used, and every imported package is a direct pin."""

from __future__ import annotations

import re
import sys

import pytest

from tests.architecture.source_tree import PRODUCT, ROOT, modules, within

THIS_REPOSITORY = {*(name.partition(".")[0] for name in PRODUCT), "tests", "_environment", "package"}
# Import name → package name, where they differ by more than hyphens.
NAMES = {"yaml": "pyyaml", "awq": "autoawq", "agents": "openai-agents", "pydantic_ai": "pydantic-ai-slim"}
# Import name → package name, for a name that several packages share; the longest that fits counts.
SHARED = {
    "llama_index.core": "llama-index-core",
    "llama_index.llms.openai": "llama-index-llms-openai",
    "llama_index.llms.openai_like": "llama-index-llms-openai-like",
    "opentelemetry": "opentelemetry-api",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry.proto": "opentelemetry-exporter-otlp-proto-http",  # which brings it
}
SHIPPED = ("serving", "tasks", "predict.py")
NOT_SERVED = ("tasks.evaluation.json_answers", "tasks.honeycomb.evaluation")  # imported by commands, lazily
# Packages that are run, not imported.
COMMANDS = {"pip", "ruff", "mypy", "pytest-asyncio", "pytest-timeout", "pytest-xdist"}
BY_COG = {"cog"}  # put into the image by `cog build`


def imported(*folders: str, without: tuple[str, ...] = ()) -> set[str]:
    """The packages that these folders import, by their names in requirement files."""
    found = {name for one in modules(*folders) if not within(one.name, without) for name in one.all_imports}
    shared = {name for name in found if within(name, tuple(SHARED))}
    top = {name.partition(".")[0] for name in found - shared} - THIS_REPOSITORY - sys.stdlib_module_names
    return {NAMES.get(name, name.replace("_", "-")) for name in top} | set(map(_shared_package, shared))


def _shared_package(name: str) -> str:
    return SHARED[max((prefix for prefix in SHARED if within(name, (prefix,))), key=len)]


def direct(name: str) -> set[str]:
    """The direct pins of requirements/NAME.txt."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8").partition("# what those")[0]
    return {pin.lower() for pin in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}


@pytest.mark.parametrize(
    ("name", "users"), [("cpu", PRODUCT), ("dev", (*PRODUCT, "tests")), ("image", SHIPPED)], ids=["cpu", "dev", "image"]
)
def test_pinned_packages_are_used(name: str, users: tuple[str, ...]) -> None:
    assert direct(name) - imported(*users) - COMMANDS == set()


def test_used_packages_are_pinned() -> None:
    everywhere = set().union(*(direct(path.stem) for path in (ROOT / "requirements").glob("*.txt")))
    assert imported(*PRODUCT) - everywhere == set()
    assert imported(*SHIPPED, without=NOT_SERVED) - direct("image") - BY_COG == set()
    assert imported("tests") - everywhere - {"tiny"} == set()
