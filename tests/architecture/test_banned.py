"""What no file may have: code that comes from data."""

from __future__ import annotations

import ast
import re

from tests.architecture.source_tree import PRODUCT, Module, modules

UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE_BUILTINS = {"eval", "exec", "__import__"}
UNSAFE_KEYWORDS = {"trust_remote_code", "allow_pickle"}
UNSAFE_ATTRIBUTES = {("torch", "load"), ("torch", "hub")}
WORDS = re.compile("|".join((*UNSAFE_MODULES, *UNSAFE_BUILTINS, *UNSAFE_KEYWORDS, "torch", "auto_map")))
WEIGHTS_ONLY = "pipeline.weights.merging.sources"  # the only module that calls torch.load, with weights_only=True


def findings(module: Module) -> list[str]:
    """Banned constructs in a file, with their lines."""
    if not WORDS.search(module.text):
        return []  # almost all files, which need not be parsed
    return [f"line {node.lineno}: {what}" for node in ast.walk(module.tree) if (what := _banned(node)) is not None]


def _banned(node: ast.AST) -> str | None:
    match node:
        case ast.Import(names=names) if unsafe := UNSAFE_MODULES & {n.name.partition(".")[0] for n in names}:
            return f"import {unsafe.pop()}"
        case ast.ImportFrom(module=str(module), names=names):
            wanted = {(module, name.name) for name in names}
            if module.partition(".")[0] in UNSAFE_MODULES or wanted & UNSAFE_ATTRIBUTES:
                return f"from {module} import"
        case ast.Call(func=ast.Name(id=name)) if name in UNSAFE_BUILTINS:
            return f"{name}("
        case ast.Attribute(value=ast.Name(id=owner), attr=attr) if (owner, attr) in UNSAFE_ATTRIBUTES:
            return f"{owner}.{attr}"
        case ast.keyword(arg=str(arg), value=value) if arg in UNSAFE_KEYWORDS:
            if isinstance(value, ast.Constant) and value.value is False:  # turns a library's default off
                return None
            return f"{arg}="
        case ast.Constant(value=str(value)) if value in UNSAFE_KEYWORDS:
            return repr(value)
        case ast.Attribute(attr="auto_map") | ast.Subscript(slice=ast.Constant(value="auto_map")):
            return "auto_map"
        case ast.Call(func=ast.Attribute(attr="get" | "pop"), args=[ast.Constant(value="auto_map"), *_]):
            return "auto_map"
    return None


def test_no_code_comes_from_data() -> None:
    found = {module.name: findings(module) for module in modules(*PRODUCT)}
    [torch_load] = found.pop(WEIGHTS_ONLY)
    assert torch_load.endswith(": torch.load")
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_torch_load_takes_only_weights() -> None:
    """A .bin file from an unknown author is read by torch's weights-only loader, never by pickle."""
    [module] = [module for module in modules(*PRODUCT) if module.name == WEIGHTS_ONLY]
    [call] = [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load"
        if isinstance(node.func.value, ast.Name)
    ]
    options = {keyword.arg: keyword.value for keyword in call.keywords}
    assert isinstance(options["weights_only"], ast.Constant)
    assert options["weights_only"].value is True
