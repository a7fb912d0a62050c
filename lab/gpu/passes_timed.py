"""Measures passes of models: milliseconds by rows and context, prompts, the head, and the time of the CPU in a step."""

from __future__ import annotations

from functools import partial
from typing import Final

import torch
from torch.profiler import ProfilerActivity, profile

from lab.gpu.gpu_report import StageReport
from lab.gpu.place import Place, copy_rate
from lab.gpu.random_model import BLOCK_SIZE, CONFIGS, LARGE, MIDDLE, SMALL, TINY, PassModel, batch_of
from serving.engines.paged.step_graphs import StepGraphs

Spans = list[tuple[int, int]]
_ROWS: Final = (1, 2, 4, 8, 16, 17, 32, 64, 65, 128, 256)
_CONTEXTS: Final = (512, 4096)
_PROMPTS: Final = (177, 512, 2048)
_USERS: Final = ((32, 1), (32, 8))  # requests, and rows of each, at the shorter context
_ALLOWED: Final = 16  # tokens that a row may choose from, as under a grammar
_STEPS: Final = (1, 8, 32)  # rows of steps whose CPU time is measured


def time_passes(place: Place, report: StageReport) -> None:
    """Passes of the last rows of one request, by CUDA events around replays; the largest model first."""
    for name in (LARGE, SMALL, MIDDLE) if place.has_gpu else (TINY,):
        if place.is_late:
            report.not_run.append(f"{name}: no time was left")
        else:
            _time_model(place, report, name)


def _time_model(place: Place, report: StageReport, name: str) -> None:
    rows, contexts = (_ROWS, _CONTEXTS) if place.has_gpu else ((1, 3), (33,))
    blocks = max(32 * contexts[0], contexts[-1]) // BLOCK_SIZE + 1
    with torch.inference_mode():
        model = PassModel(CONFIGS[name], place.kernels(half=True), place.device, blocks)
        report.add(f"{name}", "weights of its layers", model.bytes_read([]) / 1e9, "GB")
        for context in contexts:
            for count in rows:
                _add(place, report, model, f"{name}, context {context:,}", f"M={count}", [(context - count, context)])
            if context == contexts[0]:
                for length in _PROMPTS if place.has_gpu else (9,):
                    _add(place, report, model, f"{name}, prompts", f"{length:,}", [(0, length)], share=False)
                for users, count in _USERS if place.has_gpu else ((2, 1),):
                    spans = [(context - count, context)] * users
                    _add(place, report, model, f"{name}, requests at {context:,}", f"{users} of {count}", spans)
                _host(place, report, model, name, context)
        if place.has_gpu and name != LARGE:
            return
        spans = [(contexts[0] - rows[-1] // 32 - 1, contexts[0])]
        report.texts[f"profile, {name}, {spans[0][1] - spans[0][0]} rows"] = _profiled(place, model, spans)


def _add(
    place: Place, report: StageReport, model: PassModel, group: str, what: str, spans: Spans, *, share: bool = True
) -> None:
    """Milliseconds of a pass without the head, and the share of the copy rate at which it reads weights and cache."""
    if place.is_late:
        report.not_run.append(f"{group}, {what}: no time was left")
        return
    try:
        seconds = place.seconds([partial(model.forward, model.inputs(spans))])
    except torch.OutOfMemoryError as error:
        report.wrong.append(f"{group}, {what}: {error}")
        return
    rate = model.bytes_read([stop for _, stop in spans]) / seconds / copy_rate(place.device)
    report.add(group, what, 1000 * seconds, "ms", note=f"{100 * rate:.0f} %" if share else "")


def _host(place: Place, report: StageReport, model: PassModel, name: str, context: int) -> None:
    """Time of the CPU: a step that is replayed, its head, and one whose kernels are launched."""
    graphs = StepGraphs(
        model.forward,
        place.recorder(),
        max_seqs=32,
        max_blocks=-(-context // BLOCK_SIZE),
        device=place.device,
        rows=_STEPS if place.has_gpu else (1,),
    )
    graphs.record(lambda done, total: None)
    vocab, group = model.model.config.vocab_size, f"{name}, CPU time of a step"
    words = -(-vocab // 32)
    for rows in _STEPS if place.has_gpu else (1,):
        spans = [(context - 1, context)] * rows
        batch, inputs = batch_of(spans, vocab), model.inputs(spans)
        report.add(group, f"M={rows}, replayed", 1e6 * place.host_seconds(partial(graphs.run, batch)), "µs")
        report.add(group, "launched", 1e6 * place.host_seconds(partial(model.forward, inputs)), "µs")
        hidden, chosen = model.forward(inputs), torch.arange(rows, dtype=torch.int32)
        allowed = torch.zeros(rows, words, dtype=torch.int32)
        allowed[:, :: max(1, words // _ALLOWED)][:, :_ALLOWED] = 1
        few = partial(model.model.compute_allowed_logits, hidden, chosen, allowed, _ALLOWED)
        report.add(group, "head of allowed tokens, with its wait", 1e6 * place.host_seconds(few), "µs")
        whole = place.seconds([partial(model.model.compute_logits, hidden)])
        report.add(group, "the whole head on the device", 1e6 * whole, "µs")


def _profiled(place: Place, model: PassModel, spans: Spans) -> str:
    """The kernels of three passes by their time."""
    inputs = model.inputs(spans)
    model.forward(inputs)
    place.settle()
    kinds = [ProfilerActivity.CUDA] if place.has_gpu else [ProfilerActivity.CPU]
    with profile(activities=kinds) as found:
        for _ in range(3 if place.has_gpu else 1):
            model.forward(inputs)
        place.settle()
    order = "self_cuda_time_total" if place.has_gpu else "self_cpu_time_total"
    table: str = found.key_averages().table(sort_by=order, row_limit=20, max_name_column_width=50)
    return table
