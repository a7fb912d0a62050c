"""A checkpoint is exported as a GGUF with the checkpoint's tensors, in the layout of the base's GGUF."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from safetensors.numpy import save_file

from lab.bench.gguf_export import MODEL, export, permute_for_rope, quantization_of
from pipeline.weights.gguf_source import GgufCheckpoint, undo_rope_permutation

HIDDEN, MIDDLE, VOCAB, HEADS, KV_HEADS = 64, 96, 32, 4, 2
HEAD = "lm_head.weight"
SHAPES = {
    "token_embd": (VOCAB, HIDDEN),
    "output_norm": (HIDDEN,),
    "blk.0.attn_norm": (HIDDEN,),
    "blk.0.attn_q": (HIDDEN, HIDDEN),
    "blk.0.attn_k": (HIDDEN // 2, HIDDEN),
    "blk.0.attn_v": (HIDDEN // 2, HIDDEN),
    "blk.0.attn_output": (HIDDEN, HIDDEN),
    "blk.0.ffn_norm": (HIDDEN,),
    "blk.0.ffn_gate": (MIDDLE, HIDDEN),
    "blk.0.ffn_up": (MIDDLE, HIDDEN),
    "blk.0.ffn_down": (HIDDEN, MIDDLE),
}


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF in F32 with the metadata that the export uses; Qwen2's has biases, and the embedding again as head."""
    path = tmp_path_factory.mktemp("base") / "base.gguf"
    rng = np.random.default_rng(0)
    writer = GGUFWriter(path, request.param)
    writer.add_embedding_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_token_list([f"t{i}" for i in range(VOCAB)])
    writer.add_eos_token_id(2)
    writer.add_key_value("tokenizer.ggml.add_bos_token", False, GGUFValueType.BOOL)
    for name, shape in SHAPES.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    if request.param == "qwen2":
        writer.add_tensor("blk.0.attn_q.bias", rng.normal(size=HIDDEN).astype(np.float32))
        writer.add_tensor("output.weight", rng.normal(size=(VOCAB, HIDDEN)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def checkpoint(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base's own tensors, as a fine-tuned checkpoint would have them."""
    folder = tmp_path_factory.mktemp("checkpoint")
    source = GgufCheckpoint(base)
    save_file({name: source.load(name) for name in source.specs() if name != HEAD}, folder / "model.safetensors")
    for name in ("tokenizer.json", "generation_config.json", "config.json"):
        (folder / name).write_text("{}")
    return folder


@pytest.fixture(scope="module")
def exported(base: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out") / "gguf"
    export(checkpoint, base, folder)
    return folder


def test_tensors_are_read_back_within_the_error_of_four_bits(base: Path, exported: Path) -> None:
    before, after = GgufCheckpoint(base), GgufCheckpoint(exported / MODEL)
    assert set(after.specs()) == set(before.specs()) - {HEAD}
    for name in after.specs():
        expected, found = before.load(name), after.load(name)
        assert np.corrcoef(expected.ravel(), found.ravel())[0, 1] > 0.99, f"{name}: rows in another order?"
        if name.endswith(("norm.weight", "bias")):
            assert (expected == found).all()


def test_metadata_are_those_of_the_base(base: Path, exported: Path) -> None:
    reader = GGUFReader(exported / MODEL)
    for field in GGUFReader(base).fields.values():
        if field.name.startswith(("llama.", "qwen2.", "tokenizer.", "general.architecture")):
            found = reader.get_field(field.name)
            assert found is not None and found.contents() == field.contents()
            assert found.types == field.types


def test_quantization_is_that_of_the_base_model() -> None:
    assert quantization_of("blk.3.ffn_down.weight") is GGMLQuantizationType.Q4_1
    assert quantization_of("blk.3.ffn_norm.weight") is GGMLQuantizationType.F32
    assert quantization_of("token_embd.weight") is GGMLQuantizationType.Q8_0


def test_the_order_of_rows_is_the_inverse_of_the_reader_s() -> None:
    weight = np.arange(48 * 5, dtype=np.float32).reshape(48, 5)
    assert (undo_rope_permutation(permute_for_rope(weight, 3), 3) == weight).all()
    assert not (permute_for_rope(weight, 3) == weight).all()
