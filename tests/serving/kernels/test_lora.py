"""Adapters in a batch: mixed ranks and dtypes, rows without one, and the same bits alone and beside others."""

from __future__ import annotations

import pytest
import torch

from serving.kernels.lora import GATE_UP, QKV, LoraBatch, LoraSegment, LoraSite, Projection
from serving.kernels.reference import ReferenceKernels
from serving.kernels.shape_checks import KernelArgumentError
from tests.serving.kernels.lora_inputs import NARROW, random_adapter

SITES = [QKV, (Projection.OUTPUT,), GATE_UP, (Projection.DOWN,)]
ROWS = 150
# Rows 0 to 4, 57 to 63 and the last have no adapter.
PLACES = [(5, 6), (6, 21), (21, 57), (64, 80), (80, 97), (97, 149)]
RANKS = [(1,), (8,), (3,), (16,), (64,), (0, 33, 2, 0, 5, 17, 24)]


@pytest.fixture(params=[torch.float32, torch.float16, torch.bfloat16], ids=str)
def batch(request):
    adapters = [random_adapter(ranks, num_layers=2, dtype=request.param) for ranks in RANKS]
    return LoraBatch(tuple(LoraSegment(*place, one) for place, one in zip(PLACES, adapters, strict=True)))


def inputs_of(site):
    x, out = torch.randn(ROWS, NARROW[site[0]][0]), torch.randn(ROWS, sum(NARROW[p][1] for p in site))
    return x, out


@pytest.mark.parametrize("projections", SITES, ids=str)
def test_each_row_gets_its_own_adapter(cpu_float32, batch, projections):
    site, (x, out) = LoraSite(1, projections), inputs_of(projections)
    expected, actual = out.clone(), out.clone()
    ReferenceKernels().add_lora(x, batch, site, expected)
    cpu_float32.add_lora(x, batch, site, actual)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-3)
    without = [*range(5), *range(57, 64), 149]
    assert torch.equal(actual[without], out[without])
    assert not torch.equal(actual[6:21], out[6:21])


@pytest.mark.parametrize("projections", SITES, ids=str)
def test_a_row_has_the_same_bits_alone_and_beside_other_adapters(cpu_float32, batch, projections):
    site, (x, out) = LoraSite(0, projections), inputs_of(projections)
    together = out.clone()
    cpu_float32.add_lora(x, batch, site, together)
    for segment in batch.segments:
        for row in {segment.first, segment.stop - 1}:
            alone = out[row : row + 1].clone()
            cpu_float32.add_lora(
                x[row : row + 1].clone(), LoraBatch((LoraSegment(0, 1, segment.adapter),)), site, alone
            )
            assert torch.equal(alone[0], together[row]), row


def test_an_adapter_of_other_shapes_or_rows_outside_the_batch_are_refused(cpu_float32):
    adapter, (x, out) = random_adapter((4,)), inputs_of(QKV)
    for place, message in (((140, 151), "rows 140 to 151 of 150"), ((7, 7), "rows 7 to 7")):
        with pytest.raises(KernelArgumentError, match=message):
            cpu_float32.add_lora(x, LoraBatch((LoraSegment(*place, adapter),)), LoraSite(0, QKV), out)
    with pytest.raises(KernelArgumentError, match="for 40"):
        cpu_float32.add_lora(x, LoraBatch((LoraSegment(0, 1, adapter),)), LoraSite(0, GATE_UP), out)
