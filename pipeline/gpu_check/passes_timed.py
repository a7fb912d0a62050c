"""Measures passes of the model by their rows and context, and prefill, beside what the machine could do."""

from __future__ import annotations

from typing import Final

from pipeline.gpu_check.finding import Figure, Finding, Point
from pipeline.gpu_check.machine_rates import measure_rates
from pipeline.gpu_check.pass_model import PassModel
from pipeline.gpu_check.place import Place

_ROWS: Final = (1, 2, 4, 8, 16, 32, 64)
_CONTEXTS: Final = (512, 4096)
_PREFILLS: Final = (512, 2048)


def passes_timed(place: Place) -> Finding:
    """Milliseconds of passes, and the share of the copy rate at which they read weights and cache."""
    rows, contexts = ((1, 16), (512,)) if place.quick else (_ROWS, _CONTEXTS)
    repeats = 3 if place.quick else 15
    model, rates = PassModel(place.weights, place.model_device, max(contexts)), measure_rates(place)
    figures, points = list[Figure](), list[Point]()
    for context in contexts:
        for count in rows:
            seconds = place.seconds(model.one_pass(count, context), repeats)
            num_bytes = model.bytes_read(context)
            share = 100 * num_bytes / seconds / rates.bytes_per_second
            figures.append(Figure(f"M = {count}, context {context:,}", 1000 * seconds, "ms", note=_share(share)))
            points.append(Point(f"context {context:,}", model.flop(count, context), num_bytes, seconds))
    return Finding(tuple(figures), not_run=_not_run(place, model), points=tuple(points))


def prefill_timed(place: Place) -> Finding:
    """Milliseconds of whole prompts, and their share of the measured arithmetic."""
    lengths = _PREFILLS[:1] if place.quick else _PREFILLS
    model, rates = PassModel(place.weights, place.model_device, max(lengths)), measure_rates(place)
    figures, points = list[Figure](), list[Point]()
    for length in lengths:
        seconds = place.seconds(model.one_pass(length, length, with_logits=False), 3 if place.quick else 7)
        flop = model.flop(length, length, with_logits=False)
        share = 100 * flop / seconds / rates.flops
        figures.append(
            Figure(f"a prompt of {length:,}", 1000 * seconds, "ms", note=f"{share:.0f} % of torch's matmul rate")
        )
        points.append(Point("prefill", flop, model.bytes_read(length), seconds))
    return Finding(tuple(figures), not_run=_not_run(place, model), points=tuple(points))


def _share(percent: float) -> str:
    return f"{percent:.0f} % of the copy rate"


def _not_run(place: Place, model: PassModel) -> tuple[str, ...]:
    if place.has_gpu:
        return ()
    return (f"passes on a GPU: this machine has none, the figures are of the kernels {model.kernels_name}",)
