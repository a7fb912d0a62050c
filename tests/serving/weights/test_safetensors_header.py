"""A header is accepted only if it describes the file exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from serving.errors import WeightsError
from serving.weights.safetensors_header import TensorEntry, read_safetensors_header


def write(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


def test_files_of_the_safetensors_library_are_read(tmp_path: Path) -> None:
    tensors = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(5, np.uint8)}
    save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "pt"})
    header = read_safetensors_header(tmp_path / "m.safetensors")
    assert header.tensors["a"] == TensorEntry("F32", (2, 3), 0, 24)
    assert header.tensors["b"] == TensorEntry("U8", (5,), 24, 29)
    assert header.metadata == {"format": "pt"}
    assert header.data_start + 29 == (tmp_path / "m.safetensors").stat().st_size


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": entry(dtype="F31")}, b"8 bytes.", "unknown dtype 'F31'"),
        ({"a": entry(shape=[3])}, b"8 bytes.", "cannot take 8 bytes"),
        ({"a": entry(shape=[-2])}, b"8 bytes.", "has the shape"),
        ({"a": entry(shape=[True, 2])}, b"8 bytes.", "has the shape"),
        ({"a": entry(shape=[1] * 9 + [2])}, b"8 bytes.", "has the shape"),
        ({"a": entry(shape=[2**62, 2**62])}, b"8 bytes.", "cannot take 8 bytes"),
        ({"a": entry(data_offsets=[0, 8.0])}, b"8 bytes.", "has the offsets"),
        ({"a": entry(data_offsets=[8, 0])}, b"8 bytes.", "cannot take -8 bytes"),
        ({"a": entry(), "b": entry()}, b"8 bytes.", "'b' begins at byte 0 instead of 8"),
        ({"a": entry(data_offsets=[4, 12])}, b"8 bytes.gap!", "begins at byte 4 instead of 0"),
        ({"a": entry()}, b"8 bytes.more", "take 8 bytes, but it has 12"),
        ({"a": entry()}, b"less", "take 8 bytes, but it has 4"),
        ({"a": {**entry(), "more": 1}}, b"8 bytes.", "must have dtype, shape and data_offsets"),
        ({"a": 1}, b"", "must have dtype, shape and data_offsets"),
        ({"__metadata__": {"a": 1}}, b"", "not an object of strings"),
        ([], b"", "not an object"),
        (b'{"a": 1, "a": 2}', b"", "a key appears twice"),
        (b"\xff\xfe", b"", "not JSON"),
        (b"[" * 100_000, b"", "not JSON"),
    ],
)
def test_headers_that_do_not_match_the_file_are_refused(tmp_path: Path, header: Any, data: bytes, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        read_safetensors_header(write(tmp_path / "m.safetensors", header, data))


@pytest.mark.parametrize("length", [9, 10**7, 2**63])
def test_a_header_longer_than_the_file_is_not_read(tmp_path: Path, length: int) -> None:
    with pytest.raises(WeightsError, match="does not fit"):
        read_safetensors_header(write(tmp_path / "m.safetensors", b"{}", b"", length))


def test_an_empty_or_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"abc")
    with pytest.raises(WeightsError, match=r"m\.safetensors.*does not fit in 3"):
        read_safetensors_header(tmp_path / "m.safetensors")
    with pytest.raises(WeightsError, match="cannot be read"):
        read_safetensors_header(tmp_path / "none.safetensors")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_the_safetensors_library_accepts_every_header_that_we_accept(tmp_path: Path, data: st.DataObject) -> None:
    """With random damage there is no other exception, and no file is accepted that safetensors would refuse."""
    path = tmp_path / "m.safetensors"
    save_file({"a": np.zeros(2, np.float32), "b": np.ones((2, 2), np.uint8)}, path)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    path.write_bytes(raw)
    try:
        header = read_safetensors_header(path)
    except WeightsError:
        return
    try:
        assert load_file(path).keys() == header.tensors.keys()
    except SafetensorError as error:
        pytest.fail(f"accepted a header that safetensors refuses: {error}")
