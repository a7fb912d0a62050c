"""CUDA graphs: whether replayed passes have the bits of those that are launched, and what they save."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
import torch
from torch import Tensor

from pipeline.gpu_check.finding import NO_GPU, Figure, Finding, Point
from pipeline.gpu_check.machine_rates import measure_rates
from pipeline.gpu_check.pass_model import BLOCK_SIZE, PassModel
from pipeline.gpu_check.place import Place
from serving.engines.paged.cuda_recorder import CudaRecorder
from serving.engines.paged.step_batch import Batch
from serving.engines.paged.step_graphs import ROWS, StepGraphs
from serving.engines.paged.step_inputs import PaddedInputs

_CONTEXTS: Final = (512, 4096)
_COMPARED: Final = (1, 3, 16, 17, 64)  # some of which leave padding in their recording


def graphs_checked(place: Place) -> Finding:
    """Each recording at each context, without the head, which is not recorded."""
    if not place.has_gpu:
        return Finding(not_run=(f"CUDA graphs: {NO_GPU}; tests replay recorded operations on the CPU instead",))
    contexts = _CONTEXTS[:1] if place.quick else _CONTEXTS
    model = PassModel(place.weights, place.model_device, max(contexts))
    figures, points = list[Figure](), list[Point]()
    with torch.inference_mode():
        graphs = StepGraphs(
            partial(_forward, model),
            CudaRecorder(),
            max_seqs=1,
            max_blocks=-(-max(contexts) // BLOCK_SIZE),
            device=place.torch_name,
        )
        graphs.record(lambda done, total: None)
        for context in contexts:
            figures.append(_compared(place, model, graphs, context))
            timed, drawn = _timed(place, model, graphs, context)
            figures += timed
            points += drawn
    return Finding(tuple(figures), points=tuple(points))


def _forward(model: PassModel, inputs: PaddedInputs) -> Tensor:
    return model.model.forward(inputs.input_ids, inputs.positions, model.kv_caches, inputs.metadata)


def _compared(place: Place, model: PassModel, graphs: StepGraphs, context: int) -> Figure:
    """Numbers that differ from those of launched kernels."""
    differing = 0
    for rows in _COMPARED:
        batch = _batch(model, rows, context)
        launched = _forward(model, PaddedInputs.of(batch, place.torch_name)).clone()
        replayed = graphs.run(batch)
        assert replayed is not None, f"no recording holds {rows} rows"
        differing += int((replayed != launched).sum()) + int(launched.isnan().sum())
    return Figure(f"context {context:,}: replayed beside launched", differing, "numbers differ", 0.0)


def _timed(place: Place, model: PassModel, graphs: StepGraphs, context: int) -> tuple[list[Figure], list[Point]]:
    """Milliseconds of each recording, with the copy of its inputs."""
    figures, points = list[Figure](), list[Point]()
    copied = measure_rates(place).bytes_per_second
    for rows in ROWS:
        seconds = place.seconds(partial(graphs.run, _batch(model, rows, context)), 3 if place.quick else 15)
        num_bytes = model.bytes_read(context)
        note = f"{100 * num_bytes / seconds / copied:.0f} % of the copy rate"
        figures.append(Figure(f"M = {rows}, context {context:,}, replayed", 1000 * seconds, "ms", note=note))
        flop = model.flop(rows, context, with_logits=False)
        points.append(Point(f"graphs, context {context:,}", flop, num_bytes, seconds))
    return figures, points


def _batch(model: PassModel, rows: int, context: int) -> Batch:
    """The last rows of one request, as `PassModel.inputs` has them."""
    positions = np.arange(context - rows, context, dtype=np.int32)
    return Batch(
        input_ids=(5 + positions % (model.model.config.vocab_size - 5)).astype(np.int32),
        positions=positions,
        query_start=np.array([0, rows], np.int32),
        context_lens=np.array([context], np.int32),
        block_tables=np.arange(-(-context // BLOCK_SIZE), dtype=np.int32)[None],
        slot_mapping=positions.copy(),
        logit_rows=np.zeros(0, np.int32),
    )
