"""Compares whole models with plain torch, their rows with the same rows in other batches, and graphs with launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from lab.gpu.gpu_report import StageReport
from lab.gpu.kernel_checks import relative_error
from lab.gpu.place import Place, poisoned_memory
from lab.gpu.random_model import BLOCK_SIZE, CONFIGS, MIDDLE, SMALL, TINY, PassModel, batch_of, blocks_of
from serving.engines.paged.step_batch import PaddedInputs
from serving.engines.paged.step_graphs import StepGraphs
from serving.kernels.reference import ReferenceKernels

Spans = list[tuple[int, int]]
# Largest errors of logits of 24 to 30 layers: where activations are rounded to float16 in each, and where nothing is
_HALF: Final = 2e-2
_FLOAT32: Final = 1e-3


def check_model(place: Place, report: StageReport) -> None:
    """Logits of prompts and of the steps after them, and hidden states of prompts in chunks."""
    for name in (SMALL, MIDDLE) if place.has_gpu else (TINY,):
        longest = 300 if place.has_gpu else 40
        prompts: Spans = [(0, longest), (0, 17), (0, 1), (0, longest // 2)]
        later = [(stop, stop + 3) for _, stop in prompts]
        config, blocks = CONFIGS[name], blocks_of(later)
        exact = PassModel(config, ReferenceKernels(place.device), place.device, blocks)
        with poisoned_memory():
            expected = _logits(exact, prompts, later)
        for kernels, mode, half in place.modes():
            with poisoned_memory():
                model = PassModel(config, kernels, place.device, blocks)
                found = _logits(model, prompts, later)
                differing = _differing_in_chunks(model, longest, [16, 17, 64, 65] if place.has_gpu else [17])
            limit = _HALF if half else _FLOAT32
            report.add(name, f"logits, {mode}", relative_error(found, expected.double()), limit=limit)
            agreeing = (found.argmax(-1) == expected.argmax(-1)).double().mean()
            report.add(name, f"same largest logit, {mode}", 100 * float(agreeing), "%")
            report.add(name, f"numbers that differ in chunks, {mode}", differing, limit=0.0)
            if place.is_late:
                report.not_run.append(f"models after {name}, {mode}: no time was left")
                return


def _logits(model: PassModel, prompts: Spans, later: Spans) -> Tensor:
    """The logits of all rows of both steps."""
    model.fill_caches()
    whole = [(start, stop) for (start, _), (_, stop) in zip(prompts, later, strict=True)]
    return model.model.compute_logits(torch.cat([_part(model, whole, part) for part in (prompts, later)]))


def _part(model: PassModel, whole: Spans, part: Spans) -> Tensor:
    """Hidden states of a part of each request, with the tokens and blocks that the whole requests have."""
    everything = batch_of(whole, model.model.config.vocab_size)
    firsts = [first - begin for first, (begin, _) in zip(everything.query_start.tolist(), whole, strict=False)]
    rows = [first + at for first, span in zip(firsts, part, strict=True) for at in range(*span)]
    batch = replace(
        batch_of(part, model.model.config.vocab_size),
        input_ids=everything.input_ids[rows],
        block_tables=everything.block_tables,
        slot_mapping=everything.slot_mapping[rows],
    )
    return model.forward(PaddedInputs.of(batch, model.device)).clone()


def _differing_in_chunks(model: PassModel, length: int, sizes: list[int]) -> int:
    """Numbers of the hidden states of a prompt that differ when it is computed in chunks."""
    whole = _part(model, [(0, length)], [(0, length)])
    count = int(whole.isnan().sum())
    for size in sizes:
        chunks = [(first, min(first + size, length)) for first in range(0, length, size)]
        found = torch.cat([_part(model, [(0, length)], [chunk]) for chunk in chunks])
        count += int((found != whole).sum())
    return count


def check_graphs(place: Place, report: StageReport) -> None:
    """Ragged batches of 1 to 32 requests, replayed and launched: hidden states and caches, which are random before.

    Each replay poisons the memory that it uses, because that is recorded too.
    """
    seqs, longest = (32, 600) if place.has_gpu else (2, 40)
    name = SMALL if place.has_gpu else TINY
    with torch.inference_mode(), poisoned_memory():
        for kernels, mode, _ in place.modes():
            model = PassModel(CONFIGS[name], kernels, place.device, seqs * -(-longest // BLOCK_SIZE))
            graphs = StepGraphs(
                model.forward,
                place.recorder(),
                max_seqs=seqs,
                max_blocks=-(-longest // BLOCK_SIZE),
                device=place.device,
                **({} if place.has_gpu else {"rows": (2, 8)}),
            )
            graphs.record(lambda done, total: None)
            for spans in _ragged(seqs, longest, 64 if place.has_gpu else 8):
                batch, inputs = batch_of(spans, model.model.config.vocab_size), model.inputs(spans)
                model.fill_caches()
                launched, caches = model.forward(inputs).clone(), [cache.clone() for cache in model.kv_caches]
                model.fill_caches()
                replayed = graphs.run(batch)
                assert replayed is not None, f"no recording holds {spans}"
                differing = int((replayed != launched).sum()) + int(launched.isnan().sum())
                differing += sum(int((a != b).sum()) for a, b in zip(model.kv_caches, caches, strict=True))
                what = f"{len(spans)} requests of {len(batch.input_ids)} rows"
                report.add(f"{name}, {mode}, numbers that differ", what, differing, limit=0.0)
            if place.is_late:
                report.not_run.append(f"graphs after {mode}: no time was left")
                return


def _ragged(seqs: int, longest: int, rows: int) -> Iterator[Spans]:
    """Batches of 1 … `seqs` requests, each with one row or a few, at contexts of all lengths."""
    count = 1
    while count <= seqs:
        for most in (1, max(1, rows // count)):
            sizes = [1 + (7 * i + 3) % most for i in range(count)]
            ends = [max(size, longest - (97 * i) % longest) for i, size in enumerate(sizes)]
            yield [(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        count = 2 * count if count != 2 else 3
    if seqs > 3:
        yield [(longest - 1, longest)] * seqs
