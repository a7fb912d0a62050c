"""The C++ kernels on the CPU: check arguments and pass their addresses to the compiled library.

A row's result does not depend on the other rows of a call or on the number of threads, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref

import torch
from torch import Tensor

from serving.kernels.arena import Arena, populate
from serving.kernels.base import (
    Activations,
    AttentionMetadata,
    AttentionShape,
    AwqTensors,
    AwqWeight,
    DecoderPlan,
    DecoderWeights,
    HeadScreen,
    Kernels,
    MaskedProducts,
    QkvAdjustment,
    rounds_dense,
)
from serving.kernels.cpu_decoder import CpuDecoderPlan
from serving.kernels.cpu_lora import LoraTables, site_struct
from serving.kernels.kv_cache import KvCaches
from serving.kernels.library import CpuLibrary
from serving.kernels.lora import LoraBatch, LoraSite
from serving.kernels.rope import RotaryTable
from serving.kernels.shape_checks import DENSE_DTYPES, check_adjustment, check_metadata, check_tensor, require
from serving.kernels.structs import (
    CMaskedProducts,
    CScreen,
    adjustment_struct,
    awq_struct,
    batch_struct,
    dense_struct,
    dtype_code,
    shape_struct,
)

_FLOAT = torch.float32
_SCREEN_GROUP = 32  # with 64, three times as many columns are left
_MAX_GROUP = 4096  # so that sums of a group, up to 15 · 32767 · group, fit 31 bits


class CpuKernels(Kernels):
    """See `Kernels`. Tensors of another shape, dtype or stride raise `KernelArgumentError`.

    Args:
        library: the compiled kernels.
        activations: what inputs of linear layers are rounded to; without AMX tiles BFLOAT16 becomes INT8.
    """

    def __init__(self, library: CpuLibrary, activations: Activations = Activations.FLOAT32) -> None:
        self._library = library
        if activations is Activations.BFLOAT16 and not library.has_bfloat16:
            activations = Activations.INT8
        self._activations = activations
        self._arena = Arena()
        self._kv_caches = KvCaches(library, activations)
        self._lora_tables = LoraTables()

    @property
    def name(self) -> str:
        """See `Kernels.name`."""
        library = self._library
        tiles = " and AMX" if library.has_tiles else " and bfloat16 dot products" if library.has_dots else ""
        return f"c++ {32 * library.vector_width} bits{tiles}, {self._activations}, {library.num_threads} threads"

    @property
    def row_cost(self) -> float:
        # From fitted lines in docs/log.md: 0.02 to 0.03, 0.10, and 0.15 to 0.2.
        """See `Kernels.row_cost`."""
        if self._activations is Activations.BFLOAT16:
            return 0.03
        return 0.1 if self._library.has_tiles and self._activations is Activations.INT16 else 0.15

    def embedding(self, ids: Tensor, table: Tensor, out: Tensor) -> None:
        """See `Kernels.embedding`."""
        check_tensor("ids", ids, (None,), torch.int32)
        check_tensor("table", table, (None, None), DENSE_DTYPES)
        check_tensor("out", out, (ids.shape[0], table.shape[1]), _FLOAT)
        self._library.call_checked(
            "hk_embedding",
            "a token id",
            ids.data_ptr(),
            table.data_ptr(),
            dtype_code(table.dtype),
            table.shape[0],
            *out.shape,
            out.data_ptr(),
        )

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """See `Kernels.rms_norm`."""
        self._norm(None, x, weight, eps, out)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """See `Kernels.add_rms_norm`."""
        check_tensor("x", x, tuple(residual.shape), _FLOAT)
        self._norm(x, residual, weight, eps, out)

    def _norm(self, x: Tensor | None, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        check_tensor("residual", residual, (None, None), _FLOAT)
        check_tensor("weight", weight, (residual.shape[1],), _FLOAT)
        check_tensor("out", out, tuple(residual.shape), _FLOAT)
        self._library.call(
            "hk_add_rms_norm",
            None if x is None else x.data_ptr(),
            residual.data_ptr(),
            weight.data_ptr(),
            eps,
            *out.shape,
            out.data_ptr(),
        )

    def silu_and_mul(self, gate_up: Tensor, out: Tensor) -> None:
        """See `Kernels.silu_and_mul`."""
        check_tensor("out", out, (None, None), _FLOAT)
        check_tensor("gate_up", gate_up, (out.shape[0], 2 * out.shape[1]), _FLOAT)
        self._library.call("hk_silu_and_mul", gate_up.data_ptr(), *out.shape, out.data_ptr())

    def adjust_qkv(self, qkv: Tensor, adjustment: QkvAdjustment, shape: AttentionShape) -> None:
        """Add the bias and normalize the heads of queries and keys, in place."""
        check_tensor("qkv", qkv, (None, shape.qkv_width), _FLOAT)
        check_adjustment(adjustment, shape)
        self._library.call(
            "hk_adjust_qkv",
            qkv.data_ptr(),
            qkv.shape[0],
            byref(adjustment_struct(adjustment)),
            byref(shape_struct(shape, self._activations)),
        )

    def rotary_and_store_kv(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
        shape: AttentionShape,
        adjustment: QkvAdjustment | None = None,
    ) -> None:
        """See `Kernels.rotary_and_store_kv`."""
        if adjustment is not None:
            self.adjust_qkv(qkv, adjustment, shape)
        rows = qkv.shape[0]
        block_size = self._kv_caches.check(kv_cache, shape)
        check_tensor("qkv", qkv, (None, shape.qkv_width), _FLOAT)
        check_tensor("cos", cos, (rows, shape.head_dim // 2), _FLOAT)
        check_tensor("sin", sin, (rows, shape.head_dim // 2), _FLOAT)
        check_tensor("slot_mapping", slot_mapping, (rows,), torch.int32)
        self._library.call_checked(
            "hk_rotary_and_store_kv",
            "a slot",
            qkv.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            kv_cache.data_ptr(),
            kv_cache.shape[0],
            block_size,
            slot_mapping.data_ptr(),
            byref(shape_struct(shape, self._activations)),
            rows,
        )

    def paged_attention(
        self, qkv: Tensor, kv_cache: Tensor, metadata: AttentionMetadata, shape: AttentionShape, out: Tensor
    ) -> None:
        """See `Kernels.paged_attention`."""
        rows = qkv.shape[0]
        block_size = self._kv_caches.check(kv_cache, shape)
        check_tensor("qkv", qkv, (None, shape.qkv_width), _FLOAT)
        check_metadata(metadata, rows)
        check_tensor("out", out, (rows, shape.num_heads * shape.head_dim), _FLOAT)
        self._library.call_checked(
            "hk_paged_attention",
            "a row, a block or a context",
            qkv.data_ptr(),
            kv_cache.data_ptr(),
            byref(batch_struct(metadata, rows, kv_cache.shape[0], block_size)),
            byref(shape_struct(shape, self._activations)),
            out.data_ptr(),
        )

    def allocate_kv_cache(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> Tensor:
        """See `Kernels.allocate_kv_cache`."""
        return self._kv_caches.allocate(num_blocks, block_size, num_kv_heads, head_dim)

    def populate(self, kv_caches: Sequence[Tensor]) -> None:
        """See `Kernels.populate`."""
        populate(kv_caches, self._library.touch)

    def place_table(self, table: Tensor) -> Tensor:
        """See `Kernels.place_table`."""
        rounds = self._activations is Activations.BFLOAT16 and table.dtype is _FLOAT
        return self._arena.empty(tuple(table.shape), torch.bfloat16 if rounds else table.dtype).copy_(table)

    def place_linear(self, weight: Tensor) -> Tensor:
        """See `Kernels.place_linear`."""
        if not rounds_dense(weight, self._activations, has_dots=self._library.has_dots):
            return weight
        return self._arena.empty(tuple(weight.shape), torch.bfloat16).copy_(weight)

    def make_screen(self, head: Tensor) -> HeadScreen | None:
        """See `Kernels.make_screen`."""
        check_tensor("head", head, (None, None), DENSE_DTYPES)
        outputs, inputs = head.shape
        if inputs % _SCREEN_GROUP:
            return None
        return CpuHeadScreen(head, self._empty_awq(inputs, outputs, _SCREEN_GROUP), self._library)

    def pack_awq(self, tensors: AwqTensors) -> AwqWeight:
        """See `Kernels.pack_awq`."""
        inputs, packed = tensors.qweight.shape
        outputs, group = 8 * packed, tensors.group_size
        require(group > 0 and group % 8 == 0, f"group size {group} is not a multiple of 8")
        require(group <= _MAX_GROUP, f"group size {group} is over {_MAX_GROUP}")
        require(inputs % group == 0, f"{inputs} inputs are not a multiple of group size {group}")
        check_tensor("qweight", tensors.qweight, (None, None), torch.int32)
        check_tensor("qzeros", tensors.qzeros, (inputs // group, packed), torch.int32)
        check_tensor("scales", tensors.scales, (inputs // group, outputs), torch.float16)
        weight = self._empty_awq(inputs, outputs, group)
        sources = (tensors.qweight.data_ptr(), tensors.qzeros.data_ptr(), tensors.scales.data_ptr())
        self._library.call("hk_pack_awq", *sources, byref(awq_struct(weight, self._activations)))
        return weight

    def _empty_awq(self, inputs: int, outputs: int, group: int) -> AwqWeight:
        width = self._library.vector_width
        strips = -(-outputs // width)
        return AwqWeight(
            quants=self._arena.empty((strips, inputs // 8, width), torch.int32),
            zeros=self._arena.empty((strips, inputs // group, width), torch.uint8),
            scales=self._arena.empty((strips, inputs // group, width), torch.float16),
            in_features=inputs,
            out_features=outputs,
            group_size=group,
        )

    def awq_gemm(self, x: Tensor, weight: AwqWeight, out: Tensor) -> None:
        """See `Kernels.awq_gemm`."""
        check_tensor("x", x, (None, weight.in_features), _FLOAT)
        check_tensor("out", out, (x.shape[0], weight.out_features), _FLOAT)
        self._library.call(
            "hk_awq_gemm",
            byref(awq_struct(weight, self._activations)),
            x.data_ptr(),
            x.shape[0],
            out.data_ptr(),
        )

    def dense_gemm(self, x: Tensor, weight: Tensor, out: Tensor, *, rounds: bool = False) -> None:
        """See `Kernels.dense_gemm`."""
        check_tensor("weight", weight, (None, None), DENSE_DTYPES)
        check_tensor("x", x, (None, weight.shape[1]), _FLOAT)
        check_tensor("out", out, (x.shape[0], weight.shape[0]), _FLOAT, row_strided=True)
        struct = dense_struct(weight, self._activations if rounds else Activations.FLOAT32)
        self._library.call("hk_dense_gemm", byref(struct), x.data_ptr(), x.shape[0], out.data_ptr(), out.stride(0))

    def add_lora(self, x: Tensor, lora: LoraBatch, site: LoraSite, out: Tensor) -> None:
        """See `Kernels.add_lora`."""
        check_tensor("x", x, (None, None), _FLOAT)
        check_tensor("out", out, (x.shape[0], None), _FLOAT)
        arguments, place = self._lora_tables.arguments(lora, x.shape[0]), site_struct(lora, site, x, out)
        self._library.call("hk_add_lora", byref(arguments.struct), byref(place), x.data_ptr(), out.data_ptr())

    def masked_products(self, x: Tensor, weight: Tensor, rows: Tensor, bitmasks: Tensor, out: MaskedProducts) -> None:
        """See `Kernels.masked_products`."""
        check_tensor("weight", weight, (None, None), DENSE_DTYPES)
        check_tensor("x", x, (None, weight.shape[1]), _FLOAT)
        check_tensor("rows", rows, (None,), torch.int32)
        count, words = rows.shape[0], -(-weight.shape[0] // 32)
        check_tensor("bitmasks", bitmasks, (count, words), torch.int32)
        check_tensor("counts", out.counts, (count,), torch.int32)
        check_tensor("columns", out.columns, (count, None), torch.int32)
        check_tensor("products", out.products, tuple(out.columns.shape), _FLOAT)
        struct = CMaskedProducts(
            rows.data_ptr(),
            bitmasks.data_ptr(),
            count,
            words,
            out.columns.shape[1],
            out.counts.data_ptr(),
            out.columns.data_ptr(),
            out.products.data_ptr(),
        )
        self._library.call_checked(
            "hk_masked_products",
            "a row or a bit",
            byref(dense_struct(weight)),
            x.data_ptr(),
            x.shape[0],
            byref(struct),
        )

    def plan_decoder(self, embedding: Tensor, weights: DecoderWeights, rotary: RotaryTable) -> DecoderPlan | None:
        """See `Kernels.plan_decoder`."""
        return CpuDecoderPlan(embedding, weights, rotary, self._library, self._activations)


class CpuHeadScreen:
    """Finds the few tokens that may have the largest logit, by a 4-bit copy of the head; cpp/screen.h has the proof.

    Args:
        head: [V, H], any float; it must stay in place.
        copy: memory for the 4-bit copy, which is filled here.
        library: the compiled kernels.
    """

    def __init__(self, head: Tensor, copy: AwqWeight, library: CpuLibrary) -> None:
        self._library = library
        self._tensors = (head, copy, torch.empty(head.shape[0]), torch.empty(head.shape[0]))
        _, _, errors, norms = self._tensors
        self._head = dense_struct(head)
        self._screen = CScreen(awq_struct(copy, Activations.INT8), errors.data_ptr(), norms.data_ptr())
        library.call("hk_pack_screen", byref(self._head), byref(self._screen))

    def narrow(self, x: Tensor, rows: Tensor, bitmasks: Tensor) -> Tensor:
        """See `HeadScreen.narrow`."""
        count, (outputs, inputs) = rows.shape[0], self._tensors[0].shape
        check_tensor("x", x, (None, inputs), _FLOAT)
        check_tensor("bitmasks", bitmasks, (count, -(-outputs // 32)), torch.int32)
        chosen, sums = x.index_select(0, rows), torch.empty(count, 2)
        addresses = (chosen.data_ptr(), count, bitmasks.data_ptr(), sums.data_ptr())
        self._library.call_checked("hk_narrow", "a bit", byref(self._head), byref(self._screen), *addresses)
        return sums
