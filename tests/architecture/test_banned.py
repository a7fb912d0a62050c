"""What no file may have: code that comes from data, a fixed form as its docstring, or more than 300 lines."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.source_tree import PRODUCT, ROOT, Module, modules

MAX_LINES = 300
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE_BUILTINS = {"eval", "exec", "__import__"}
UNSAFE_KEYWORDS = {"trust_remote_code", "allow_pickle"}
UNSAFE_ATTRIBUTES = {("torch", "load"), ("torch", "hub")}
WEIGHTS_ONLY = "pipeline.weights.merging.torch_file"  # the only module that calls torch.load, with weights_only=True


def findings(tree: ast.Module) -> list[str]:
    """Banned constructs in a file, with their lines."""
    return [f"line {node.lineno}: {what}" for node in ast.walk(tree) if (what := _banned(node)) is not None]


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


@pytest.mark.parametrize("module", modules(*PRODUCT), ids=lambda module: module.name)
def test_no_code_comes_from_data(module: Module) -> None:
    found = [finding.partition(": ")[2] for finding in findings(module.tree)]
    assert found == (["torch.load"] if module.name == WEIGHTS_ONLY else [])


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


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p, json",
        "from pickle import loads",
        "import joblib.numpy_pickle",
        "torch.load(path)",
        "from torch import load",
        "load = torch.load",
        "eval('1')",
        "exec(code)",
        "__import__(name)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
        "kwargs = {'trust_remote_code': True}",
        "numpy.load(path, allow_pickle=True)",
        "config['auto_map']",
        "config.auto_map",
        "config.get('auto_map', {})",
    ],
)
def test_each_banned_construct_is_found(source: str) -> None:
    assert len(findings(ast.parse(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "safetensors.torch.load_file(path)",
        "json.load(file)",
        "'auto_map' in config",
        "from_pretrained(x, trust_remote_code=False)",
    ],
)
def test_similar_safe_code_is_accepted(source: str) -> None:
    assert findings(ast.parse(source)) == []


@pytest.mark.parametrize("module", modules(*PRODUCT, "tests"), ids=lambda module: module.name)
def test_a_module_docstring_says_what_the_module_does(module: Module) -> None:
    """A docstring is a plain sentence, not a form with fields for what the module owns and what it does not know."""
    docstring = ast.get_docstring(module.tree) or ""
    assert not [phrase for phrase in ("Owns:", "Knows nothing") if phrase.lower() in docstring.lower()]


def test_no_python_file_is_long() -> None:
    lengths = {
        str(module.path.relative_to(ROOT)): len(module.path.read_text(encoding="utf-8").splitlines())
        for module in modules(*PRODUCT, "tests")
    }
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}
