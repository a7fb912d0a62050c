"""The kernels in Triton: check arguments and launch.

    kernels = TritonKernels("cuda", half=True)

A row's result does not depend on the other rows, bit for bit, except with `half` and more than 64 rows. Bits on a GPU
have not been compared yet.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from serving.kernels.base import AttentionMetadata, AttentionShape, AwqTensors, AwqWeight, QkvAdjustment
from serving.kernels.lora import LoraBatch, LoraSite
from serving.kernels.masked_products import MaskedProducts
from serving.kernels.reference import ReferenceKernels
from serving.kernels.shape_checks import check_adjustment, check_tensor
from serving.kernels.triton import elementwise_device
from serving.kernels.triton.launching import INTERPRETED, launch
from serving.kernels.triton.tiles import TileSizes, power_of_two
from serving.kernels.triton.triton_attention import TritonAttention
from serving.kernels.triton.triton_chosen import TritonChosen
from serving.kernels.triton.triton_lora import TritonLora
from serving.kernels.triton.triton_matmul import TritonMatmul

_FLOAT = torch.float32
_BLOCK = 1024


class TritonKernels(ReferenceKernels):
    """See `Kernels`. Embedding is torch's, as in the reference.

    Args:
        device: torch's name of the device; "cpu" only under the interpreter.
        half: whether inputs of matmuls and the KV cache are float16 (unquantized weights: tf32); sums are float32.
        tiles: sizes of tiles and splits.
    """

    def __init__(self, device: str, *, half: bool, tiles: TileSizes | None = None) -> None:
        super().__init__(device)
        self._half = half
        tiles = tiles or TileSizes()
        self._matmul = TritonMatmul(tiles, half=half)
        self._chosen = TritonChosen(tiles, half=half)
        self._attention = TritonAttention(tiles, half=half)
        self._lora = TritonLora(tiles, device, half=half)

    @property
    def name(self) -> str:
        """See `Kernels.name`."""
        return f"triton {'interpreter' if INTERPRETED else self._device}, {'float16' if self._half else 'float32'}"

    @property
    def row_cost(self) -> float:
        """See `Kernels.row_cost`."""
        return 0.01  # an estimate: up to 64 rows, a pass reads the weights once

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """See `Kernels.rms_norm`."""
        self._norm(None, x, weight, eps, out)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """See `Kernels.add_rms_norm`."""
        check_tensor("x", x, tuple(residual.shape), _FLOAT)
        self._norm(x, residual, weight, eps, out)

    def _norm(self, x: Tensor | None, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        check_tensor("residual", residual, (None, None), _FLOAT)
        rows, width = residual.shape
        check_tensor("weight", weight, (width,), _FLOAT)
        check_tensor("out", out, (rows, width), _FLOAT)
        tensors = (residual if x is None else x, residual, weight, out)
        constants = {"HAS_X": x is not None, "BLOCK": power_of_two(width)}
        launch(elementwise_device.add_rms_norm, (rows,), *tensors, width, eps, **constants)

    def silu_and_mul(self, gate_up: Tensor, out: Tensor) -> None:
        """See `Kernels.silu_and_mul`."""
        check_tensor("out", out, (None, None), _FLOAT)
        rows, width = out.shape
        check_tensor("gate_up", gate_up, (rows, 2 * width), _FLOAT)
        launch(elementwise_device.silu_and_mul, (rows, triton.cdiv(width, _BLOCK)), gate_up, out, width, BLOCK=_BLOCK)

    def adjust_qkv(self, qkv: Tensor, adjustment: QkvAdjustment, shape: AttentionShape) -> None:
        """See `Kernels.adjust_qkv`."""
        heads = shape.num_heads + 2 * shape.num_kv_heads
        check_tensor("qkv", qkv, (None, heads * shape.head_dim), _FLOAT)
        check_adjustment(adjustment, shape)
        parts = (adjustment.bias, adjustment.query_norm, adjustment.key_norm)
        launch(
            elementwise_device.adjust_qkv,
            (qkv.shape[0],),
            *(qkv, *(qkv if part is None else part for part in parts), adjustment.eps),
            HAS_BIAS=adjustment.bias is not None,
            HAS_NORMS=adjustment.query_norm is not None,
            HEADS=shape.num_heads,
            KV_HEADS=shape.num_kv_heads,
            DIM=shape.head_dim,
            ALL_HEADS=power_of_two(heads),
            BLOCK=power_of_two(shape.head_dim),
        )

    def rotary_and_store_kv(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
        shape: AttentionShape,
    ) -> None:
        """See `Kernels.rotary_and_store_kv`."""
        self._attention.rotary_and_store_kv(qkv, cos, sin, kv_cache, slot_mapping, shape)

    def paged_attention(
        self, qkv: Tensor, kv_cache: Tensor, metadata: AttentionMetadata, shape: AttentionShape, out: Tensor
    ) -> None:
        """See `Kernels.paged_attention`."""
        self._attention.paged_attention(qkv, kv_cache, metadata, shape, out)

    def allocate_kv_cache(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> Tensor:
        """See `Kernels.allocate_kv_cache`."""
        return self._attention.allocate(num_blocks, block_size, num_kv_heads, head_dim, self._device)

    def pack_awq(self, tensors: AwqTensors) -> AwqWeight:
        """See `Kernels.pack_awq`."""
        return self._matmul.pack_awq(tensors)

    def awq_gemm(self, x: Tensor, weight: AwqWeight, out: Tensor) -> None:
        """See `Kernels.awq_gemm`."""
        self._matmul.awq_gemm(x, weight, out)

    def dense_gemm(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """See `Kernels.dense_gemm`."""
        self._matmul.dense_gemm(x, weight, out)

    def add_lora(self, x: Tensor, lora: LoraBatch, site: LoraSite, out: Tensor) -> None:
        """See `Kernels.add_lora`."""
        self._lora.add_lora(x, lora, site, out)

    def masked_products(self, x: Tensor, weight: Tensor, rows: Tensor, bitmasks: Tensor, out: MaskedProducts) -> None:
        """See `Kernels.masked_products`."""
        self._chosen.masked_products(x, weight, rows, bitmasks, out)
