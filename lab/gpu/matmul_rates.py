"""Measures the four matmuls of Mistral-7B: beside torch's, with other tiles, and by the GPU's own counters (ncu).

python -m lab.gpu.matmul_rates    # what ncu watches: one matmul of 8 rows, and attention of 8 rows
"""

from __future__ import annotations

import csv
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, Final

import torch
from torch import Tensor

from lab.gpu.compile_ahead import Job, compile_jobs
from lab.gpu.gpu_report import StageReport
from lab.gpu.kernel_cases import HALF, activations
from lab.gpu.kernel_checks import relative_error
from lab.gpu.kernel_operands import qkv_width, random_awq, random_batch
from lab.gpu.place import Place, copy_rate
from lab.gpu.random_model import BLOCK_SIZE, CONFIGS, LARGE, TINY, blocks_of, copy_of, tensor_bytes
from pipeline.paths import ROOT
from serving.kernels.base import AwqTensors, Kernels
from serving.kernels.triton.tiles import SMALL_TILES, TileSizes

SHAPES: Final = {"qkv": (4096, 6144), "output": (4096, 4096), "gate, up": (4096, 28672), "down": (14336, 4096)}
_GROUP: Final = 128
_ROWS: Final = (1, 8, 16, 64, 512)
_FAR: Final = 200e6  # bytes of the copies of a weight that take turns, so that none is in the cache
# Sizes to try: each alone, then pairs
SWEEP: Final[dict[str, tuple[int, ...]]] = {
    **{"columns": (64, 256), "inputs": (64,), "programs": (128, 512)},
    **{"warps": (2, 8), "stages": (2, 3, 6)},
}
ATTENTION_SWEEP: Final[dict[str, tuple[int, ...]]] = {"keys": (16, 64, 128), "split_keys": (64, 256, 512)}
_METRICS: Final = (
    *("gpu__time_duration.sum", "dram__bytes_read.sum", "dram__throughput.avg.pct_of_peak_sustained_elapsed"),
    *("lts__t_bytes.sum", "sm__warps_active.avg.pct_of_peak_sustained_active", "launch__registers_per_thread"),
    *("l1tex__data_bank_conflicts_pipe_lsu.sum", "smsp__issue_active.avg.pct_of_peak_sustained_active"),
)


def _shapes(place: Place) -> tuple[dict[str, tuple[int, int]], tuple[int, ...]]:
    return (SHAPES, _ROWS) if place.has_gpu else ({"tiny": (256, 64)}, (1,))


def measure_baselines(place: Place, report: StageReport) -> None:
    """The same products by our kernel, by torch's 4-bit matmul in bfloat16, and by cuBLAS in float16."""
    shapes, counts = _shapes(place)
    with torch.device(place.device), torch.inference_mode():
        kernels = place.kernels(half=True)
        kinds: dict[str, Callable[[Place, int, int], Timed]]
        kinds = {"ours": partial(_ours, kernels), "int4pack": _int4pack, "float16": _cublas}
        for name, (inputs, outputs) in shapes.items():
            for kind, make in kinds.items():
                if place.is_late:
                    report.not_run.append(f"{name}, {kind}: no time was left")
                    continue
                try:
                    multiply, num_bytes = make(place, inputs, outputs)
                    for rows in counts:
                        seconds = multiply(rows)
                        rate = 100 * num_bytes / seconds / copy_rate(place.device)
                        what = f"{name} {inputs}×{outputs}, {kind}"
                        report.add(what, f"M={rows}", 1e6 * seconds, "µs", note=f"{rate:.0f} %")
                except (RuntimeError, AttributeError, NotImplementedError) as error:
                    report.not_run.append(f"{name}, {kind}: {error}")


Timed = tuple[Callable[[int], float], int]  # seconds of a product of so many rows, and bytes of the weight


def _turns(place: Place, num_bytes: int) -> int:
    return math.ceil(_FAR / num_bytes) if place.has_gpu else 1


def _awq_tensors(inputs: int, outputs: int) -> AwqTensors:
    return random_awq(inputs, outputs, min(_GROUP, inputs))


def _ours(kernels: Kernels, place: Place, inputs: int, outputs: int) -> Timed:
    weight = kernels.pack_awq(_awq_tensors(inputs, outputs))
    num_bytes = tensor_bytes(weight)
    weights = [weight, *(copy_of(weight) for _ in range(_turns(place, num_bytes) - 1))]

    def timed(rows: int) -> float:
        x = activations(kernels, rows, inputs)
        return place.seconds([partial(_multiply, kernels, x, each) for each in weights])

    return timed, num_bytes


def _multiply(kernels: Kernels, x: Tensor, weight: Any) -> Tensor:
    """Multiply as `Linear` does, so that the next kernel adds up the parts; here they are added up."""
    count, shape = kernels.num_parts(weight), (x.shape[0], weight.out_features)
    out = torch.empty((count, *shape) if count > 1 else shape)
    kernels.awq_gemm(x, weight, out)
    return out


def _int4pack(place: Place, inputs: int, outputs: int) -> Timed:
    group, turns = min(_GROUP, inputs), _turns(place, inputs * outputs // 2)
    scales = torch.randn(inputs // group, outputs, 2).bfloat16()
    multiply: Callable[..., Tensor]
    if place.has_gpu:
        words = [torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8) for _ in range(turns)]
        weights = [torch._convert_weight_to_int4pack(each, 8) for each in words]
        multiply = torch._weight_int4pack_mm
    else:
        quants = torch.randint(0, 16, (outputs, inputs), dtype=torch.int32)
        weights, multiply = [torch._convert_weight_to_int4pack_for_cpu(quants, 1)], torch._weight_int4pack_mm_for_cpu

    def timed(rows: int) -> float:
        x = torch.randn(rows, inputs).bfloat16()
        return place.seconds([partial(multiply, x, each, group, scales) for each in weights])

    return timed, weights[0].nbytes + scales.nbytes


def _cublas(place: Place, inputs: int, outputs: int) -> Timed:
    weights = [torch.randn(outputs, inputs).half() for _ in range(_turns(place, 2 * inputs * outputs))]

    def timed(rows: int) -> float:
        x = torch.randn(rows, inputs).half()
        return place.seconds([partial(torch.mm, x, each.T) for each in weights])

    return timed, weights[0].nbytes


def variants(table: dict[str, tuple[int, ...]]) -> list[dict[str, int]]:
    """The default tiles, then those with one other size, then with two."""
    single = [(name, size) for name, sizes in table.items() for size in sizes]
    pairs = [dict(pair) for pair in combinations(single, 2) if pair[0][0] != pair[1][0]]
    return [{}, *({name: size} for name, size in single), *pairs]


def sweep_tiles(place: Place, report: StageReport) -> None:
    """Other sizes of tiles, of attention and of the matmuls: the fastest ones beside the default ones."""
    tried = variants(SWEEP) if place.has_gpu else variants(SWEEP)[:2]
    if place.has_gpu:  # one after the other they would take minutes to compile
        compile_jobs([Job(LARGE, True, rows, one) for one in tried[1:] for rows in (1, 64)], seconds=25)
    shapes, counts = _shapes(place)
    times: dict[str, list[tuple[float, str]]] = {}
    with torch.device(place.device), torch.inference_mode():
        _sweep_attention(place, report)
        given = {
            name: (_awq_tensors(*shape), torch.randn(max(counts), shape[0]).half()) for name, shape in shapes.items()
        }
        expected: dict[str, Tensor] = {}
        for sizes in tried:
            if place.is_late:
                report.not_run.append(f"from {_label(sizes)} on: no time was left")
                break
            kernels = place.kernels(half=True, tiles=_tiles(place, sizes))
            for name, (tensors, x) in given.items():
                try:
                    weight = kernels.pack_awq(tensors)
                    out = torch.empty(len(x), weight.out_features)
                    kernels.awq_gemm(x, weight, out)
                    if not relative_error(out, expected.setdefault(name, out).double()) < HALF:
                        report.wrong.append(f"{name}, {_label(sizes)}: another product than with the default tiles")
                    weights = [weight, *(copy_of(weight) for _ in range(_turns(place, tensor_bytes(weight)) - 1))]
                    for rows in counts:
                        seconds = place.seconds([partial(_multiply, kernels, x[:rows], each) for each in weights])
                        times.setdefault(f"{name}, M={rows}", []).append((seconds, _label(sizes)))
                except Exception as error:  # sizes that do not go together, or need too much shared memory
                    report.not_run.append(f"{name}, {_label(sizes)}: {type(error).__name__}: {error}"[:200])
    for group, found in times.items():
        _add_fastest(report, group, found)


def _sweep_attention(place: Place, report: StageReport) -> None:
    """A layer of Mistral-7B: the last rows of one request, and of 32."""
    model = replace(CONFIGS[LARGE if place.has_gpu else TINY], num_layers=1)
    context, counts = (4096, ((1, 1), (1, 8), (32, 1), (1, 256))) if place.has_gpu else (33, ((1, 2),))
    shape = model.attention
    for users, rows in counts:
        spans, times = [(context - rows, context)] * users, list[tuple[float, str]]()
        metadata = random_batch(spans, BLOCK_SIZE, blocks_of(spans))
        qkv = torch.randn(users * rows, qkv_width(shape))
        out = torch.empty(users * rows, shape.num_heads * shape.head_dim, dtype=torch.float16)
        for sizes in variants(ATTENTION_SWEEP) if place.has_gpu else [{}]:
            kernels = place.kernels(half=True, tiles=_tiles(place, sizes))
            cache = kernels.allocate_kv_cache(blocks_of(spans), BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
            cache.normal_()
            try:
                run = partial(kernels.paged_attention, qkv, cache, metadata, shape, out)
                times.append((place.seconds([run]), _label(sizes)))
            except Exception as error:  # sizes that need too much shared memory
                report.not_run.append(f"attention, {_label(sizes)}: {type(error).__name__}: {error}"[:200])
        _add_fastest(report, f"attention at {context:,}, {users} of {rows}", times)


def _tiles(place: Place, sizes: dict[str, int]) -> TileSizes:
    return replace(TileSizes() if place.has_gpu else SMALL_TILES, **sizes)


def _label(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "default"


def _add_fastest(report: StageReport, group: str, times: list[tuple[float, str]]) -> None:
    for seconds, label in [*times[:1], *sorted(times)[:3]]:
        report.add(group, label, 1e6 * seconds, "µs")


def read_counters(place: Place, report: StageReport) -> None:
    """Two readings of Nsight Compute: the largest matmul and attention, both of 8 rows."""
    command = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw"]
    command += ["--metrics", ",".join(_METRICS), sys.executable, "-m", "lab.gpu.matmul_rates"]
    if not place.has_gpu or shutil.which("ncu") is None:
        report.not_run.append("ncu is not installed here" if place.has_gpu else "the counters of a GPU: there is none")
        read_once(place)  # so that what ncu would watch is known to run
        return
    left = max(5.0, place.deadline - time.monotonic())
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=left)
    except subprocess.TimeoutExpired:
        report.not_run.append(f"ncu took more than {left:.0f} s")
        return
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if done.returncode or not lines:
        report.not_run.append(f"ncu ended with {done.returncode}: {(done.stdout + done.stderr)[-600:]}")
        return
    report.texts["ncu"] = "\n".join(lines)
    for row in list(csv.DictReader(lines))[1:]:  # the first row has the units
        for metric in _METRICS:
            with suppress(ValueError, KeyError):
                report.add(f"ncu, {row['Kernel Name'][:40]}", metric, float(row[metric].replace(",", "")))


def read_once(place: Place) -> None:
    """One matmul and one attention between the marks that ncu looks for."""
    name, rows, context = (LARGE, 8, 4096) if place.has_gpu else (TINY, 2, 33)
    kernels, config = place.kernels(half=True), CONFIGS[name]
    with torch.device(place.device), torch.inference_mode():
        spans, shape = [(context - rows, context)], config.attention
        weight = kernels.pack_awq(_awq_tensors(config.hidden_size, 2 * config.intermediate_size))
        x, qkv = activations(kernels, rows, config.hidden_size), torch.randn(rows, qkv_width(shape))
        cache = kernels.allocate_kv_cache(blocks_of(spans), BLOCK_SIZE, shape.num_kv_heads, shape.head_dim).normal_()
        metadata = random_batch(spans, BLOCK_SIZE, blocks_of(spans))
        out = activations(kernels, rows, shape.num_heads * shape.head_dim)
        for watched in (False, True):
            place.settle()
            if watched and place.has_gpu:
                torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
            _multiply(kernels, x, weight)
            kernels.paged_attention(qkv, cache, metadata, shape, out)
            place.settle()
        if place.has_gpu:
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    read_once(Place(True, math.inf))
