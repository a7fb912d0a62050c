"""Kernels are compiled once, again when a source changes, and not at all without a compiler."""

from __future__ import annotations

import logging

import pytest

from serving.kernels import build
from serving.kernels.library import CpuLibrary
from serving.kernels.reference import ReferenceKernels
from serving.kernels.select import Device, create_kernels
from tests.serving.kernels.builds import MARKED, library_of

SOURCE = 'extern "C" int answer() { return 42; }'


@pytest.fixture
def sources(tmp_path, monkeypatch):
    folder = tmp_path / "cpp"
    folder.mkdir()
    (folder / "cpu.cpp").write_text(SOURCE)
    monkeypatch.setattr(build, "SOURCES", folder)
    return folder


def test_a_library_is_compiled_once_and_again_for_other_flags_or_sources(sources, tmp_path):
    cache = tmp_path / "cache"
    if build.find_compiler() is None:
        pytest.skip("no C++ compiler here")
    first = build.build_library(cache=cache)
    assert first is not None
    written = first.stat().st_mtime_ns
    assert build.build_library(cache=cache) == first
    assert first.stat().st_mtime_ns == written
    assert build.build_library(("-DX",), cache=cache) != first
    (sources / "cpu.cpp").write_text(SOURCE + "\n")
    assert build.build_library(cache=cache) not in (None, first)
    assert sorted(path.suffix for path in cache.iterdir()) == [".so"] * 3
    assert cache.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", MARKED)
def test_each_build_has_the_vectors_of_its_instructions(name):
    """Otherwise a test of the AVX2 build on a machine with AVX512 would prove nothing."""
    width = CpuLibrary(library_of(name), 1).vector_width
    assert width == {"wide": 16, "avx2": 8}.get(name, width)


def test_no_compiler_means_one_warning_and_torch(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with caplog.at_level(logging.WARNING):
        assert isinstance(create_kernels(Device.CPU), ReferenceKernels)
    assert [record.getMessage() for record in caplog.records] == [
        "no C++ compiler (g++, c++, clang++): using the slower torch kernels"
    ]


def test_a_source_that_does_not_compile_leaves_nothing_behind(sources, tmp_path, caplog):
    if build.find_compiler() is None:
        pytest.skip("no C++ compiler here")
    (sources / "cpu.cpp").write_text("this is no C++")
    with caplog.at_level(logging.WARNING):
        assert build.build_library(cache=tmp_path / "cache") is None
    assert "compiling the kernels failed" in caplog.text
    assert "error" in caplog.text
    assert list((tmp_path / "cache").iterdir()) == []
