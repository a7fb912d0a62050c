"""Compiles the Triton kernels for GPUs, without one, and prints what the compiler made of them as JSON.

A process of its own, because a process either interprets kernels or compiles them.

    TRITON_INTERPRET=0 python -m tests.serving.kernels.triton.compiled_kernels
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from serving.kernels.base import AttentionShape
from serving.kernels.triton import attention_device, elementwise_device, lora_device, matmul_device
from serving.kernels.triton.tiles import AttentionTile, TileSizes

TILES = TileSizes()
# Kernels that have a loop over their inputs
LOOPS = ("w4a16, 16 rows", "w4a16, 32 rows", "w4a16, 64 rows", "dense", "chosen", "attend_splits", "shrink", "expand")
# Mistral 7B: 4,096 hidden, 14,336 inner, 32 heads of 128 on 8 KV heads
SHAPE = AttentionShape(32, 8, 128, 4096)
INTS = ("query_start_ptr", "context_lens_ptr", "block_tables_ptr", "slots_ptr", "columns_ptr", "rows_ptr")
UNALIGNED = ("num_rows", "num_seqs", "first_tile", "num_splits", "table_width", "splits", "place", "parts", "room")


OPTIONS = {
    "w4a16, 16 rows": {"num_stages": TILES.stages},
    "dense": {"num_warps": 8},
    "attend_splits": {"num_stages": 2},
}  # the others have Triton's own: three stages, four warps


def kernels() -> dict[str, tuple[object, dict[str, object], dict[str, str]]]:
    """Name → kernel, its constants, and the types of arguments that are not float32 or int32."""
    tile, half = AttentionTile.of(SHAPE), triton.language.float16
    awq = {"GROUP": 128, "INPUTS": TILES.awq_inputs(128), "COLUMNS": TILES.columns, "WARPS": TILES.warps}
    split = {**awq, "SPLIT_STEPS": 8, "DTYPE": half}
    attention = {
        **{"KV_HEADS": SHAPE.num_kv_heads, "DIM": SHAPE.head_dim, "GROUP": tile.group, "TILE_ROWS": tile.rows},
        **{"PAIRS": tile.pairs, "BLOCK": tile.width, "SPLIT": TILES.split_keys, "WINDOW": SHAPE.sliding_window},
    }
    heads = {"HEADS": SHAPE.num_heads, "KV_HEADS": SHAPE.num_kv_heads, "DIM": SHAPE.head_dim}
    packed = {"x_ptr": "*fp16", "quants_ptr": "*i32", "groups_ptr": "*i32"}
    dense = {"INPUTS": TILES.dense_inputs, "COLUMNS": TILES.dense_columns, "SPLIT_STEPS": 8, "DTYPE": half}
    dense["PRECISION"] = "tf32"
    adapters = {"PARTS": 3, "TYPE": triton.language.float16, "PRECISION": "tf32"}
    shrunk = {"INPUTS": TILES.dense_inputs, "SPLIT_STEPS": TILES.adapter_inputs // TILES.dense_inputs}
    rotary = {**heads, "HAS_BIAS": True, "HAS_NORMS": True, "SOME_HEADS": 8, "BLOCK": 64}
    return {
        "w4a16, 16 rows": (matmul_device.w4a16, {**split, "DOTS": 1}, packed),
        "w4a16, 32 rows": (matmul_device.w4a16, {**split, "DOTS": 2}, packed),
        "w4a16, 64 rows": (matmul_device.w4a16, {**split, "DOTS": 4}, packed),
        "dense": (matmul_device.dense, {**dense, "DOTS": 4}, {"weight_ptr": "*fp16"}),
        "chosen": (matmul_device.chosen, dense, {"weight_ptr": "*fp16"}),
        "sum_splits": (matmul_device.sum_splits, {"BLOCK": 1024}, {}),
        "shrink": (lora_device.shrink, {**adapters, **shrunk}, {"tiles_ptr": "*i64", "x_ptr": "*fp16"}),
        "expand": (lora_device.expand, {**adapters, "COLUMNS": TILES.adapter_columns}, {"tiles_ptr": "*i64"}),
        "attend_splits": (
            attention_device.attend_splits,
            {**attention, "KEYS": TILES.keys, "DTYPE": triton.language.float16},
            {"cache_ptr": "*fp16"},
        ),
        "combine_splits": (attention_device.combine_splits, attention, {"out_ptr": "*fp16"}),
        "add_rms_norm": (elementwise_device.add_rms_norm, {"HAS_X": True, "BLOCK": 4096}, {"out_ptr": "*fp16"}),
        "silu_and_mul": (elementwise_device.silu_and_mul, {"BLOCK": 1024}, {"out_ptr": "*fp16"}),
        "rotary_and_store_kv": (elementwise_device.rotary_and_store_kv, rotary, {"cache_ptr": "*fp16"}),
    }


def build(kernel, constants, types, capability: int, *, options=None, unaligned=UNALIGNED):
    """The compiled kernel, as for tensors and sizes that are multiples of 16, except those in `unaligned`."""
    names = kernel.arg_names
    signature: dict[str, str] = {}
    for name in names:
        default = "*i32" if name in INTS else "*fp32" if name.endswith("_ptr") else "i32"
        signature[name] = "constexpr" if name in constants else types.get(name, default)
        if name in ("eps", "scale"):
            signature[name] = "fp32"
    aligned = [n for n in names if signature[n] not in ("constexpr", "fp32") and n not in unaligned]
    hints = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(kernel, signature, {(names.index(n),): v for n, v in constants.items()}, hints)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def spilled_bytes(ptx: str, capability: int) -> int:
    """Bytes of spilled registers, by ptxas's report."""
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    architecture = f"sm_{capability}{'a' if capability >= 90 else ''}"
    program = "ptxas-blackwell" if capability >= 100 else "ptxas"
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "kernel.ptx"
        path.write_text(ptx)
        command = [folder / program, "-v", f"--gpu-name={architecture}", "--regAllocOptLevel=2", path]
        report = subprocess.run([*command, "-o", f"{path}.cubin"], capture_output=True, text=True, check=True).stderr
    stores = re.findall(r"(\d+) bytes spill stores", report)
    assert stores, report
    return sum(map(int, stores))


def described(built, capability: int) -> dict[str, int]:
    """What the test asks of a compiled kernel; loads are counted in its PTX."""
    ptx = built.asm["ptx"]
    loads = re.findall(r"(?:ld\.global|cp\.async\.c[ag]\.shared)[^;]*;", ptx)
    wide = [load for load in loads if ".v4.b32" in load or ".v2.b64" in load or re.search(r", (?:0x10|16)\b", load)]
    return {
        "spilled": spilled_bytes(ptx, capability),
        "shared": built.metadata.shared,
        "wide_loads": len(wide),
        "narrow_loads": len(loads) - len(wide),
        "shared_stores": len(re.findall(r"st\.shared|stmatrix", ptx)),
    }


def main() -> None:
    """Those with loops for all four; the others, which compile alike, for one. Then three that must fail the checks."""
    result = {}
    for capability in (80, 89, 90, 100):
        for name, (kernel, constants, types) in kernels().items():
            if capability == 80 or name in LOOPS:
                built = build(kernel, constants, types, capability, options=OPTIONS.get(name))
                result[f"{name}, sm_{capability}"] = described(built, capability)
    kernel, constants, types = kernels()["w4a16, 16 rows"]
    unaligned = build(kernel, constants, types, 80, unaligned=(*UNALIGNED, "quants_ptr"))
    result["unaligned weights"] = described(unaligned, 80)
    whole = {**constants, "DTYPE": triton.language.float32, "DOTS": 2}  # the most, see `TritonMatmul.awq_gemm`
    other = build(kernel, whole, {**types, "x_ptr": "*fp32"}, 80, options={"num_stages": 2})
    result["float32"] = described(other, 80)  # not on the tensor cores, so in another order
    result["few registers"] = described(build(kernel, constants, types, 80, options={"maxnreg": 40}), 80)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
