"""`create_engine`: the engine asked for and no other, or an error that says what to do."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from serving import engine as seam
from serving.config import Settings
from serving.engine import create_engine, has_cuda_device
from serving.errors import EngineNotAvailableError
from tests import tiny_tokenizers

ROOT = Path(__file__).parents[2]


def test_an_engine_is_made_by_name(tmp_path: Path) -> None:
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    engine = create_engine(Settings(engine="fake", weights_dir=tmp_path, max_model_len=64))
    assert (engine.name, engine.max_model_len) == ("fake", 64)
    engine.close()


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(EngineNotAvailableError, match=r"'tpu' is unknown.*auto, paged, vllm, fake"):
        create_engine(Settings(engine="tpu"))


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vllm is installed")
def test_a_missing_package_is_an_error_that_says_what_to_install() -> None:
    with pytest.raises(EngineNotAvailableError, match="pip install vllm"):
        create_engine(Settings(engine="vllm"))


def test_a_new_engine_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with `create`, and a line in the table."""
    line = seam._Entry("tests.serving.engine_for_test", package="json", install="nothing")
    monkeypatch.setitem(seam._ENGINES, "mine", line)
    assert create_engine(Settings(engine="mine", max_model_len=99)).max_model_len == 99


def test_an_engine_that_does_not_import_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    line = seam._Entry("tests.serving.no_such_module", package="json", install="a-package==1.0")
    monkeypatch.setitem(seam._ENGINES, "broken", line)
    with pytest.raises(EngineNotAvailableError, match=r"no_such_module.*pip install a-package==1\.0"):
        create_engine(Settings(engine="broken"))


def test_auto_takes_vllm_only_where_there_is_a_gpu_and_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    installed, missing = seam._Entry("a", "json", ""), seam._Entry("a", "no_such_package_at_all", "")
    for entry, device, expected in (
        (installed, True, "vllm"),
        (installed, False, "paged"),
        (missing, True, "paged"),
    ):
        monkeypatch.setitem(seam._ENGINES, "vllm", entry)
        assert seam.choose_engine(has_device=device) == expected


def test_a_gpu_is_seen_by_its_device_file_unless_it_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "nvidiactl").touch()
    assert not has_cuda_device(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert has_cuda_device(tmp_path)
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert not has_cuda_device(tmp_path)


def test_choosing_an_engine_imports_neither_torch_nor_another_engine(tmp_path: Path) -> None:
    """Asked of a fresh interpreter; torch alone would cost seconds."""
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    program = (
        "import sys; from pathlib import Path;"
        "from serving.config import Settings; import serving.engine as seam;"
        "seam.choose_engine(has_device=True);"
        f"seam.create_engine(Settings(engine='fake', weights_dir=Path({str(tmp_path)!r}))).close();"
        "print([m for m in ('torch', 'vllm', 'transformers', 'serving.paged', 'serving.vllm_engine')"
        " if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


def test_what_errors_say_to_install_is_what_the_requirements_pin() -> None:
    text = "\n".join(path.read_text() for path in ROOT.glob("requirements/*.txt"))
    pinned: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE):
        pinned.setdefault(name, set()).add(version)
    for entry in seam._ENGINES.values():
        for name, version in re.findall(r"([\w.-]+)==([\w.]+)", entry.install):
            assert pinned.get(name, {version}) == {version}, name
