"""cog.yaml is valid for Cog 0.23.1, agrees with the repository, and its image can be installed."""

from __future__ import annotations

import ast
import json
import re
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import jsonschema
import pytest
import yaml

from pipeline.environment.install import load_uv
from pipeline.environment.uv import Uv

ROOT = Path(__file__).resolve().parents[2]
CONFIG = yaml.safe_load((ROOT / "cog.yaml").read_text("utf-8"))
SCHEMA = json.loads((Path(__file__).parent / "cog_yaml_schema.json").read_text("utf-8"))
# Cog refuses to build with these set (pkg/config/env.go)
DENIED = ["PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "PYTHONUNBUFFERED", "R8_*", "REPLICATE_*"]
DENIED += ["COG_OBSERVABILITY_*", "COG_TRACE_*", "OTEL_*", "LIBRARY_PATH", "CUDA_*", "NVIDIA_*", "NV_*"]
DENIED += ["PGET_*", "HF_ENDPOINT", "HF_HUB_ENABLE_HF_TRANSFER", "KUBERNETES_*"]


def test_it_is_valid_by_cog_s_own_schema():
    jsonschema.Draft7Validator(SCHEMA).validate(CONFIG)


@pytest.mark.parametrize("change", [{"gpu": True}, {"build": {}}, {"weights": [{"name": "A b"}]}, {"run": "run.py:R"}])
def test_the_schema_refuses_wrong_values(change):
    assert not jsonschema.Draft7Validator(SCHEMA).is_valid({**CONFIG, **change})


def test_predict_names_a_class_that_exists():
    file, _, name = CONFIG["predict"].partition(":")
    module = ast.parse((ROOT / file).read_text("utf-8"))
    assert name in {node.name for node in module.body if isinstance(node, ast.ClassDef)}


def test_the_sdk_has_the_pinned_version():
    assert f"cog=={CONFIG['build']['sdk_version']}" in pins("cpu")


def test_packages_in_both_environments_have_the_same_version():
    """Otherwise a query could differ between a laptop and the image."""
    image, cpu = (dict(pin.split("==") for pin in pins(name)) for name in ("image", "cpu"))
    assert {name: image[name] for name in image.keys() & cpu.keys()} == {
        name: cpu[name] for name in image.keys() & cpu.keys()
    }
    assert {"torch", "llguidance", "tokenizers", "pydantic"} <= image.keys() & cpu.keys()


def test_cuda_is_set_because_cog_does_not_know_this_torch():
    assert CONFIG["build"]["gpu"] is True
    assert re.fullmatch(r"\d+\.\d+", CONFIG["build"]["cuda"])
    assert "torch==2.13.0" in pins("image")


def test_weights_have_a_model_and_are_where_the_settings_expect_them():
    """`model` must be a bare repository; targets are absolute; the image's working folder is /src."""
    assert "image" not in CONFIG
    assert re.fullmatch(r"[a-z0-9.-]+(/[a-z0-9._-]+)+", CONFIG["model"])
    (weights,) = CONFIG["weights"]
    target = PurePosixPath(weights["target"])
    assert target.is_relative_to("/src")
    assert str(target.relative_to("/src")) == weights["source"]["uri"] == f"weights/{weights['name']}"


def test_the_lock_belongs_to_these_weights():
    (weights,) = CONFIG["weights"]
    (locked,) = json.loads((ROOT / "weights.lock").read_text("utf-8"))["weights"]
    assert (locked["name"], locked["target"]) == (weights["name"], weights["target"])


def test_cog_accepts_the_environment_variables():
    names = [variable.partition("=")[0] for variable in CONFIG["environment"]]
    assert not [name for name in names if any(fnmatch(name, denied) for denied in DENIED)]


def test_concurrency_is_the_default_of_scripts_serve():
    assert CONFIG["concurrency"]["max"] == 32
    assert "default=32" in (ROOT / "scripts" / "serve").read_text("utf-8")


@pytest.mark.parametrize("path", [".git", ".venv", ".venv-awq", "weights", "tests", "build", ".mypy_cache"])
def test_the_image_does_not_contain(path):
    assert is_ignored(path)


@pytest.mark.parametrize("path", ["predict.py", "serving", "tasks", "weights.lock", "requirements", ".cog"])
def test_the_image_contains(path):
    assert not is_ignored(path)


@pytest.mark.index
def test_the_image_s_requirements_resolve_for_linux_on_x86_64(tmp_path):
    """Together with Cog's SDK, from wheels only, for the base image's glibc. Only metadata is downloaded."""
    sdk = tmp_path / "sdk.txt"
    sdk.write_text(f"cog=={CONFIG['build']['sdk_version']}\n")
    options = ["--only-binary=:all:", "--python-platform=x86_64-manylinux_2_35"]
    options.append(f"--python-version={CONFIG['build']['python_version']}")
    uv = Uv(load_uv().program, pip={})  # the image is built without this machine's pip configuration
    lines = set(uv.resolve(ROOT / CONFIG["build"]["python_requirements"], sdk, options=options))
    assert set(pins("image")) <= lines
    assert any(line.startswith("nvidia-cudnn-cu13==") for line in lines), "torch needs another CUDA than cog.yaml has"


def pins(name: str) -> list[str]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
    return re.findall(r"^([\w.-]+==[\w.]+)", text, re.MULTILINE)


def is_ignored(path: str) -> bool:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    return any(fnmatch(path, line) for line in lines if line and not line.startswith("#"))
