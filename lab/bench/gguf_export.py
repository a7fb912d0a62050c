"""Convert a Hugging Face checkpoint (Llama, Qwen2) to a 4-bit GGUF for llama.cpp.

The tokenizer and the hyperparameters are those of the base's own GGUF, whose vocabulary the checkpoint has.

    export(Path("weights/unquantized"), Path("weights/.cache/SmolLM2-135M-Instruct.Q4_1.gguf"), folder)
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import quantize
from numpy.typing import NDArray
from safetensors import safe_open

from pipeline.weights.atomic import partial_file
from pipeline.weights.gguf_source import hugging_face_name

MODEL = "model.gguf"
_HEAD = "lm_head.weight"
_ARCHITECTURE = "general.architecture"
_BY_WRITER = ("GGUF.", _ARCHITECTURE, "general.file_type", "general.quantization_version")
# Of Llama's GGUF only; other architectures keep Hugging Face's order.
_PERMUTED = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
Array = NDArray[np.float32]


def export(checkpoint: Path, base: Path, folder: Path) -> None:
    """Write model.gguf (Q4_1, embedding Q8_0, norms F32) and the files that the engine reads beside it.

    Args:
        checkpoint: folder of the unquantized model.
        base: a GGUF of the same architecture and vocabulary.
        folder: for the results, created if necessary.
    """
    folder.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(base)
    with partial_file(folder / MODEL) as partial:
        writer = GGUFWriter(partial, str(_value(reader, _ARCHITECTURE)))
        _copy_metadata(reader, writer)
        with safe_open(checkpoint / "model.safetensors", framework="np") as tensors:
            for name, array in _tensors(reader, tensors):
                kind = quantization_of(name)
                data = array if kind is GGMLQuantizationType.F32 else quantize(array, kind)
                writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    for name in ("tokenizer.json", "generation_config.json", "config.json"):
        shutil.copyfile(checkpoint / name, folder / name)


def quantization_of(name: str) -> GGMLQuantizationType:
    """The quantization of a tensor, as in the base's file."""
    if name.endswith(("norm.weight", ".bias")):
        return GGMLQuantizationType.F32
    return GGMLQuantizationType.Q8_0 if name == "token_embd.weight" else GGMLQuantizationType.Q4_1


def permute_for_rope(weight: Array, num_heads: int) -> Array:
    """Reorder rows of Q or K from Hugging Face's order (halves of a head) to GGUF's (adjacent pairs)."""
    rows, columns = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)


def _tensors(reader: GGUFReader, tensors: Any) -> Iterator[tuple[str, Array]]:
    permuted = _PERMUTED if _value(reader, _ARCHITECTURE) == "llama" else {}
    known = set(tensors.keys())
    for tensor in reader.tensors:
        name = hugging_face_name(tensor.name)
        if name == _HEAD and name not in known:
            continue  # it is tied, as in llama.cpp where there is none
        array = np.asarray(tensors.get_tensor(name), dtype=np.float32)
        heads = next((key for part, key in permuted.items() if f".{part}." in tensor.name), None)
        yield tensor.name, array if heads is None else permute_for_rope(array, int(_value(reader, heads)))


def _copy_metadata(reader: GGUFReader, writer: GGUFWriter) -> None:
    for field in reader.fields.values():
        if not field.name.startswith(_BY_WRITER):
            kind, *inner = field.types
            of = inner[-1] if kind is GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=of)
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_1)
    writer.add_quantization_version(2)


def _value(reader: GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    assert field is not None, f"every GGUF has {key}"
    return field.contents()
