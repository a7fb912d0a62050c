"""Triton's adapters: each row gets its own, of any rank and type, and has the same bits alone and beside others."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from lab.gpu.kernel_operands import poisoned
from serving.kernels.lora import GATE_UP, QKV, LoraBatch, LoraSegment, LoraSite, Projection
from serving.kernels.reference import ReferenceKernels
from serving.kernels.shape_checks import KernelArgumentError
from serving.kernels.triton.tiles import SMALL_TILES
from tests.serving.kernels.lora_inputs import random_adapter
from tests.serving.kernels.triton.placing import DEVICE, ON_THE_GPU

pytestmark = ON_THE_GPU

SITES = [QKV, (Projection.OUTPUT,), GATE_UP, (Projection.DOWN,)]
# Inputs and outputs of each projection: several splits of 128 inputs, tiles of 64 outputs, and odd numbers
SHAPES = ((130, 96), (130, 33), (130, 65), (300, 130), (130, 64), (130, 64), (31, 130))
ROWS = 60
# Rows 0 to 4, 37 to 39 and the last have no adapter.
PLACES = [(5, 6), (6, 22), (22, 37), (40, 42), (42, 59)]
RANKS = [(1,), (8,), (33,), (16,), (0, 17, 2, 0, 5, 24, 3)]


@pytest.fixture
def lora(half):
    pytest.importorskip("triton", reason="triton is not installed")
    from serving.kernels.triton.lora import TritonLora

    return TritonLora(SMALL_TILES, DEVICE, half=half)


def batch_of(*dtypes):
    """Adapters of these types in turn."""
    with torch.device("cpu"):  # where they are loaded
        adapters = [
            random_adapter(ranks, num_layers=2, shapes=SHAPES, dtype=dtypes[i % len(dtypes)])
            for i, ranks in enumerate(RANKS)
        ]
    return LoraBatch(tuple(LoraSegment(*place, one) for place, one in zip(PLACES, adapters, strict=True)))


def float_tensors():
    """Those that are alive."""
    return [one for one in gc.get_objects() if type(one) is torch.Tensor and one.is_floating_point()]


def inputs_of(site):
    return torch.randn(ROWS, SHAPES[site[0]][0]), torch.randn(ROWS, sum(SHAPES[p][1] for p in site))


def exact_of(x, batch, site, out):
    """The reference's sum in float64, and the sum of the absolute products."""
    exact, size = out.double(), out.double().abs()
    for segment in batch.segments:
        start = 0
        for projection in site.projections:
            one = segment.adapter.layers[site.layer][projection]
            down, up = (matrix.to(DEVICE).double() for matrix in (one.down, one.up))
            place = slice(segment.first, segment.stop), slice(start, start := start + up.shape[1])
            rows = x[place[0]].double()
            exact[place] += rows @ down.T * one.scaling @ up
            size[place] += rows.abs() @ down.abs().T * one.scaling @ up.abs()
    return exact, size


@pytest.mark.parametrize(
    "dtypes",
    [(torch.float32,), (torch.float16,), (torch.bfloat16,), (torch.bfloat16, torch.float32, torch.float16)],
    ids=["float32", "float16", "bfloat16", "mixed"],
)
@pytest.mark.parametrize("projections", SITES, ids=str)
def test_each_row_gets_its_own_adapter_and_others_are_untouched(lora, half, dtypes, projections):
    batch, site, (x, out) = batch_of(*dtypes), LoraSite(1, projections), inputs_of(projections)
    without = [*range(5), *range(37, 40), 59]
    x[without], out[0] = float("nan"), float("nan")  # such rows are neither read nor written
    found = out.clone()
    lora.add_lora(x, batch, site, found)
    assert torch.equal(found[without].nan_to_num(nan=7.0), out[without].nan_to_num(nan=7.0))
    exact, size = exact_of(x, batch, site, out)
    computed = [row for row in range(ROWS) if row not in without]
    error = ((found - exact).abs() / size)[computed].max()
    assert error < (2e-3 if half else 1e-6)


def test_the_reference_adds_the_same(lora, half):
    batch, site, (x, out) = batch_of(torch.float32), LoraSite(0, QKV), inputs_of(QKV)
    found, expected = out.clone(), out.cpu().clone()
    lora.add_lora(x, batch, site, found)
    ReferenceKernels().add_lora(x.cpu(), batch, site, expected)
    close = {"rtol": 2e-2, "atol": 2.0} if half and DEVICE == "cuda" else {"rtol": 1e-4, "atol": 1e-3}
    torch.testing.assert_close(found.cpu(), expected, **close)


@pytest.mark.parametrize("projections", SITES, ids=str)
def test_a_row_has_the_same_bits_alone_and_beside_other_adapters(lora, projections):
    batch, site, (x, out) = batch_of(torch.float16, torch.float32), LoraSite(0, projections), inputs_of(projections)
    together = out.clone()
    lora.add_lora(x, batch, site, together)
    for segment in batch.segments:
        for row in {segment.first, segment.stop - 1}:
            alone, mine = out[row : row + 1].clone(), LoraBatch((LoraSegment(0, 1, segment.adapter),))
            lora.add_lora(x[row : row + 1].clone(), mine, site, alone)
            assert torch.equal(alone[0], together[row]), row


def test_what_is_between_the_products_is_written_before_it_is_read(lora, monkeypatch):
    """Memory that the kernels get may hold anything."""
    from serving.kernels.triton import lora as triton_lora

    batch, site, (x, out) = batch_of(torch.float32), LoraSite(0, QKV), inputs_of(QKV)
    expected = out.clone()
    lora.add_lora(x, batch, site, expected)
    monkeypatch.setattr(triton_lora.torch, "empty", lambda *shape, device: poisoned(*shape).to(device))
    lora.add_lora(x, batch, site, out)
    assert torch.equal(out, expected)


def test_an_adapter_that_changes_nothing_there_launches_nothing(lora, monkeypatch):
    from serving.kernels.triton import lora as triton_lora

    with torch.device("cpu"):
        adapter = random_adapter((0, 0, 0, 0, 0, 0, 4), shapes=SHAPES)
    monkeypatch.setattr(triton_lora, "launch", None)
    x, out = inputs_of(QKV)
    expected = out.clone()
    lora.add_lora(x, LoraBatch((LoraSegment(0, 9, adapter),)), LoraSite(0, QKV), out)
    assert torch.equal(out, expected)


def test_the_copy_on_the_device_is_dropped_with_the_adapter(lora):
    batch, (x, out) = batch_of(torch.float32), inputs_of(QKV)
    before = {id(tensor) for tensor in float_tensors()}
    lora.add_lora(x, batch, LoraSite(0, QKV), out)
    copies = [weakref.ref(tensor) for tensor in float_tensors() if id(tensor) not in before]
    adapters = [weakref.ref(segment.adapter) for segment in batch.segments]
    assert len(copies) >= len(adapters)
    del batch
    gc.collect()
    assert not any(one() is not None for one in (*adapters, *copies))


def test_adapters_of_other_shapes_and_rows_outside_the_batch_are_refused(lora):
    with torch.device("cpu"):
        adapter, other = random_adapter((4,), shapes=SHAPES), random_adapter((4,))
    x, out = inputs_of(QKV)
    expected = out.clone()
    for segments, site, message in (
        ([(50, 61, adapter)], QKV, "rows up to 61 of 60"),
        ([(7, 7, adapter)], QKV, "rows 7 to 7"),
        ([(0, 1, adapter), (1, 2, other)], QKV, "different models"),
        ([(0, 1, adapter)], GATE_UP, "adapters of .* columns for 194"),
    ):
        batch = LoraBatch(tuple(LoraSegment(*segment) for segment in segments))
        with pytest.raises(KernelArgumentError, match=message):
            lora.add_lora(x, batch, LoraSite(0, site), out)
    with pytest.raises(KernelArgumentError, match="other inputs than 20"):
        lora.add_lora(x[:, :20].contiguous(), LoraBatch((LoraSegment(0, 1, adapter),)), LoraSite(0, QKV), out)
    assert torch.equal(out, expected)
