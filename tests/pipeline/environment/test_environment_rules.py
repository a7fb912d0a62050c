"""Which environment a command enters, what its requirements may be, and how uv gets pip's configuration."""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
import threading
from pathlib import Path

import pytest

from pipeline.environment import enter, install, pins
from pipeline.environment.uv import index_options
from pipeline.environment.waiting_lock import waiting_lock

ROOT = Path(__file__).resolve().parents[3]


def test_uv_uses_pip_s_indexes_unless_it_has_its_own():
    pip = {
        "index-url": "https://mirror/simple",
        "extra-index-url": "https://a/simple\nhttps://b/simple",
        "timeout": "9",
    }
    assert index_options(pip, {}) == [
        "--default-index", "https://mirror/simple", "--index", "https://a/simple", "--index", "https://b/simple",
        "--index-strategy=unsafe-best-match",
    ]  # fmt: skip
    assert index_options(pip, {"UV_DEFAULT_INDEX": "mine", "UV_INDEX": "mine too"}) == []
    assert index_options({"no-index": "1", "find-links": "/wheels"}, {}) == ["--no-index", "--find-links", "/wheels"]
    assert index_options({}, {}) == []


@pytest.mark.parametrize(
    ("engine", "speculation", "uses_gpu", "has_vllm", "expected"),
    [
        ("auto", None, False, False, "cpu"),
        ("auto", None, True, False, "cpu"),  # with PyTorch's CUDA build: the paged engine on the GPU
        ("auto", None, True, True, "vllm-gpu"),
        ("paged", None, True, True, "cpu"),
        ("fake", None, True, True, "cpu"),
        ("vllm", None, True, False, "vllm-gpu"),
        ("vllm", None, False, False, "vllm"),
        ("vllm", "suffix", False, False, "vllm-suffix"),
        ("paged", "suffix", False, False, "cpu"),
    ],
)
def test_each_engine_has_its_environment(engine, speculation, uses_gpu, has_vllm, expected):
    assert enter.environment(engine, speculation, uses_gpu, has_vllm) == expected


@pytest.mark.parametrize(
    ("option", "variable", "device", "engine", "environment"),
    [
        (None, None, "", "auto", "cpu"),
        (None, "vllm", "", "vllm", "vllm-gpu"),
        (None, "vllm", "cpu", "vllm", "vllm"),
        ("fake", "vllm", "", "fake", "cpu"),
    ],
)
def test_on_a_machine_with_a_gpu_device_is_kept_and_engine_is_the_option_s(
    option, variable, device, engine, environment, monkeypatch
):
    entered: list[str] = []
    monkeypatch.setattr(enter, "ensure", entered.append)
    monkeypatch.setattr(enter, "has_cuda_device", lambda: True)
    monkeypatch.setenv("ENGINE", variable or "")
    monkeypatch.setenv("DEVICE", device)
    monkeypatch.delenv("SPECULATION", raising=False)
    enter.ensure_for_engine(option)
    assert (os.environ["ENGINE"], os.environ["DEVICE"], entered) == (engine, device, [environment])


@pytest.mark.parametrize(
    ("torch", "has_device", "device", "expected"),
    [
        (None, False, "", True),
        ("cpu", False, "", True),
        ("cuda", False, "", True),
        (None, True, "", False),  # made before there was a GPU
        ("cpu", True, "", False),
        ("cpu", True, "cpu", True),
        ("cuda", True, "", True),
    ],
)
def test_an_environment_of_a_machine_without_a_gpu_is_made_again_where_there_is_one(
    torch, has_device, device, expected, monkeypatch
):
    monkeypatch.setattr(pins, "has_cuda_device", lambda: has_device)
    monkeypatch.setenv("DEVICE", device)
    assert pins.has_torch_of_machine({} if torch is None else {"torch": torch}) is expected


def test_vllm_for_gpus_is_the_image_s_and_has_what_scripts_need():
    assert pins.ENVIRONMENTS["vllm-gpu"] == pins.ENVIRONMENTS[pins.BUILT_ON["vllm-gpu"]]
    assert [file.name for file in pins.requirement_files("vllm-gpu")] == ["cpu.txt"]
    assert pins.digest("vllm-gpu") not in (pins.digest("image"), pins.digest("cpu"))


def test_the_error_without_python_3_11_says_what_to_install(monkeypatch, tmp_path):
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\necho 3.8\n")
    old.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(old))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match=r"Python 3\.11 is needed.*python3\.11-venv"):
        install.find_python()


@pytest.mark.parametrize("name", ["clients", "cpu", "dev", "image", "llama-index", "modal", "ray", "replicate2", "uv"])
def test_every_requirement_is_an_exact_version(name):
    lines = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8").splitlines()
    requirements = [line.split("#")[0].strip() for line in lines]
    assert not [line for line in requirements if line and "==" not in line and not line.startswith("-r ")]


@pytest.mark.index
@pytest.mark.parametrize("name", [name for name in pins.ENVIRONMENTS if name != "image"])
def test_every_installed_package_is_pinned(name):
    """So that two installations are equal.

    Not checked: PyTorch's CUDA packages, which only machines with a GPU get, and the image's, which are installed from
    its direct pins, as Cog does.
    """
    files = [path for path in pins.requirement_files(name) if not path.stem.endswith(".no-deps")]
    text = "\n".join(path.read_text("utf-8") for path in [*pins.included(name), *files])
    pinned = {re.sub("[._]", "-", pin).lower() for pin in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    resolved = {line.partition("==")[0] for line in install.load_uv().resolve(*files)}
    cuda = {package for package in resolved if package.startswith(("nvidia-", "cuda-", "triton"))}
    assert resolved
    assert resolved - pinned - cuda == set()


def test_every_environment_has_its_requirement_file():
    for name in pins.ENVIRONMENTS:
        assert pins.requirement_files(name)


def test_the_scripts_that_make_environments_run_on_python_3_8():
    """They report which Python is missing, so they must run without it."""
    names = ("scripts/_environment", "pipeline/__init__", "pipeline/paths", "serving/__init__", "serving/devices")
    for file in [*(ROOT / f"{name}.py" for name in names), *(ROOT / "pipeline" / "environment").iterdir()]:
        if file.suffix == ".py":
            ast.parse(file.read_text("utf-8"), feature_version=(3, 8))


def test_a_process_says_that_it_waits_for_a_lock(tmp_path, capsys):
    entered = threading.Event()

    def wait() -> None:
        with waiting_lock(tmp_path / "lock", "Waiting for the other"):
            entered.set()

    waiting = threading.Thread(target=wait)
    with waiting_lock(tmp_path / "lock", "never said"):
        waiting.start()
        assert not entered.wait(0.3)
    waiting.join(10)
    assert entered.is_set()
    assert capsys.readouterr().err == "Waiting for the other\n"
