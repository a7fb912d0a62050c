"""Written files are valid safetensors, with the same bytes each time, and complete or absent."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.weights.errors import CheckpointError
from pipeline.weights.safetensors_io import SafetensorsCheckpoint, SafetensorsFile, write_safetensors
from pipeline.weights.tensors import Fingerprinted, TensorSpec
from tests.pipeline.weights.checkpoint_fixtures import Arrays


class Mixed(Arrays):
    """Tensors of several types."""

    def specs(self) -> dict[str, TensorSpec]:
        names = {"float32": "F32", "float16": "F16", "int32": "I32", "uint8": "U8"}
        return {name: TensorSpec(names[a.dtype.name], a.shape) for name, a in self.arrays.items()}


def mixed() -> Mixed:
    rng = np.random.default_rng(1)
    return Mixed(
        {
            "b.odd": rng.integers(0, 255, 3).astype(np.uint8),
            "a.half": rng.normal(size=(3, 5)).astype(np.float16),
            "z.whole": rng.normal(size=(2, 3)).astype(np.float32),
            "é.ints": rng.integers(-9, 9, (4, 1)).astype(np.int32),
        }
    )


def test_the_safetensors_library_reads_our_files(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "m.safetensors", mixed(), {"note": "ü"})
    loaded = safetensors.torch.load_file(tmp_path / "m.safetensors")
    assert loaded.keys() == mixed().arrays.keys()
    for name, array in mixed().arrays.items():
        np.testing.assert_array_equal(loaded[name].numpy(), array)
    assert SafetensorsFile(tmp_path / "m.safetensors").metadata == {"format": "pt", "note": "ü"}


def test_same_tensors_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    backwards = Mixed(dict(reversed(mixed().arrays.items())))
    write_safetensors(tmp_path / "1.safetensors", mixed())
    write_safetensors(tmp_path / "2.safetensors", backwards)
    assert (tmp_path / "1.safetensors").read_bytes() == (tmp_path / "2.safetensors").read_bytes()
    assert Fingerprinted(mixed()).fingerprint() == Fingerprinted(backwards).fingerprint()


def test_numbers_are_aligned_for_their_type(tmp_path: Path) -> None:
    """Readers map files into memory, where an unaligned int32 is slow or an error."""
    write_safetensors(tmp_path / "m.safetensors", mixed())
    raw = (tmp_path / "m.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    entries = json.loads(raw[8 : 8 + length])
    for name, spec in mixed().specs().items():
        assert (8 + length + entries[name]["data_offsets"][0]) % spec.itemsize == 0


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    class Failing(Mixed):
        def load(self, name: str) -> np.ndarray:
            if name == "z.whole":
                raise CheckpointError("gone")
            return super().load(name)

    with pytest.raises(CheckpointError, match="gone"):
        write_safetensors(tmp_path / "m.safetensors", Failing(mixed().arrays))
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50))
def test_bf16_is_rounded_as_torch_rounds_it(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    spec = TensorSpec("BF16", array.shape)
    expected = torch.from_numpy(array).to(torch.bfloat16)
    stored = bytes(spec.encode(array))
    assert stored == expected.view(torch.int16).numpy().tobytes()
    np.testing.assert_array_equal(spec.decode(stored), expected.float().numpy())


def test_values_beyond_fp16_are_refused_instead_of_becoming_infinite() -> None:
    with pytest.raises(CheckpointError, match="65,504"):
        TensorSpec("F16", (1,)).encode(np.array([70_000], dtype=np.float32))


def test_shards_are_read_as_one_checkpoint(tmp_path: Path) -> None:
    arrays = mixed().arrays
    weight_map = {}
    for index, name in enumerate(arrays):
        file = f"model-{index:05}.safetensors"
        write_safetensors(tmp_path / file, Mixed({name: arrays[name]}))
        weight_map[name] = file
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    checkpoint = SafetensorsCheckpoint(tmp_path)
    assert checkpoint.specs() == mixed().specs()
    np.testing.assert_array_equal(checkpoint.load("a.half"), arrays["a.half"])
    assert Fingerprinted(checkpoint).fingerprint() == Fingerprinted(mixed()).fingerprint()


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", ".a.safetensors", "..\\a.safetensors", "a.bin", 5])
def test_an_index_cannot_point_outside_its_folder(tmp_path: Path, name: object) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(CheckpointError, match=r"which is not a \.safetensors file in its folder"):
        SafetensorsCheckpoint(tmp_path)


@pytest.mark.parametrize("index", ["", "{}", "[]", '{"weight_map": {"a": []}}', "[" * 20_000])
def test_a_damaged_index_is_refused(tmp_path: Path, index: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=r"index\.json is damaged"):
        SafetensorsCheckpoint(tmp_path)


def test_fingerprint_changes_with_name_type_shape_and_value() -> None:
    def of(name: str, array: np.ndarray, dtype: str = "F32") -> str:
        return Fingerprinted(Arrays({name: array}, dtype)).fingerprint()

    one = np.arange(4, dtype=np.float32)
    different = {
        of("a", one),
        of("b", one),
        of("a", one.reshape(2, 2)),
        of("a", one + 1),
        of("a", one, "BF16"),
    }
    assert len(different) == 5


def test_fingerprint_reads_each_tensor_once() -> None:
    """It is computed during the quantization instead of reading 0.5 GB again."""
    source = Arrays({"a": np.zeros(2, np.float32), "b": np.ones(2, np.float32)})
    seen = Fingerprinted(source)
    seen.load("b")
    seen.fingerprint()
    assert sorted(source.loaded) == ["a", "b"]
