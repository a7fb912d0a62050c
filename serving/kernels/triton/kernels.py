"""The kernels in Triton: check arguments and launch.

    kernels = TritonKernels("cuda", half=True)

A row's result does not depend on the other rows, bit for bit. Bits on a GPU have not been compared yet.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from serving.kernels.base import AttentionMetadata, AttentionShape, AwqTensors, AwqWeight, MaskedProducts, QkvAdjustment
from serving.kernels.lora import LoraBatch, LoraSite
from serving.kernels.reference import ReferenceKernels
from serving.kernels.shape_checks import check_tensor
from serving.kernels.triton import elementwise_device
from serving.kernels.triton.attention import TritonAttention
from serving.kernels.triton.launching import INTERPRETED, launch
from serving.kernels.triton.lora import TritonLora
from serving.kernels.triton.masked_products import TritonChosen
from serving.kernels.triton.matmul import TritonMatmul
from serving.kernels.triton.tiles import SMALL_TILES, TileSizes, power_of_two

_FLOAT = torch.float32
_BLOCK = 1024


class TritonKernels(ReferenceKernels):
    """See `Kernels`. Embedding is torch's, as in the reference.

    Args:
        device: torch's name of the device; "cpu" only under the interpreter.
        half: whether inputs of matmuls and the KV cache are float16 (with weights in bfloat16 or float32: tf32); sums
            are float32.
        tiles: sizes of tiles and splits; None: small ones for the interpreter, the default on a GPU.
    """

    def __init__(self, device: str, *, half: bool, tiles: TileSizes | None = None) -> None:
        super().__init__(device)
        self._half = half
        tiles = tiles or (SMALL_TILES if INTERPRETED else TileSizes())
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
        return 0.01  # an estimate: up to 64 rows, a pass reads the weights once; measured when graphs are recorded

    @property
    def activation_dtype(self) -> torch.dtype:
        """See `Kernels.activation_dtype`."""
        return torch.float16 if self._half else _FLOAT

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """See `Kernels.rms_norm`."""
        self._norm(None, x, weight, eps, out)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """See `Kernels.add_rms_norm`."""
        check_tensor("x", x, (None,) * (x.dim() - 2) + tuple(residual.shape), _FLOAT)
        self._norm(x, residual, weight, eps, out)

    def _norm(self, x: Tensor | None, residual: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        check_tensor("residual", residual, (None, None), _FLOAT)
        rows, width = residual.shape
        check_tensor("weight", weight, (width,), _FLOAT)
        check_tensor("out", out, (rows, width), (_FLOAT, self.activation_dtype))
        launch(
            elementwise_device.add_rms_norm,
            (rows,),
            *(residual if x is None else x, residual, weight, out, rows, width, _num_parts(x), eps),
            HAS_X=x is not None,
            BLOCK=power_of_two(width),
            num_warps=8 if width > _BLOCK else 4,
        )

    def silu_and_mul(self, gate_up: Tensor, out: Tensor) -> None:
        """See `Kernels.silu_and_mul`."""
        check_tensor("out", out, (None, None), (_FLOAT, self.activation_dtype))
        rows, width = out.shape
        check_tensor("gate_up", gate_up, (None,) * (gate_up.dim() - 2) + (rows, 2 * width), _FLOAT)
        grid = (rows, triton.cdiv(width, _BLOCK))
        sizes = (rows, width, _num_parts(gate_up))
        launch(elementwise_device.silu_and_mul, grid, gate_up, out, *sizes, BLOCK=_BLOCK)

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
        self._attention.rotary_and_store_kv(qkv, cos, sin, kv_cache, slot_mapping, shape, adjustment)

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

    def num_parts(self, weight: AwqWeight) -> int:
        """See `Kernels.num_parts`."""
        return self._matmul.num_parts(weight)

    def awq_gemm(self, x: Tensor, weight: AwqWeight, out: Tensor) -> None:
        """See `Kernels.awq_gemm`."""
        self._matmul.awq_gemm(x, weight, out)

    def dense_gemm(self, x: Tensor, weight: Tensor, out: Tensor, *, rounds: bool = False) -> None:
        """See `Kernels.dense_gemm`; linear layers' inputs have the activation dtype already."""
        self._matmul.dense_gemm(x, weight, out)

    def add_lora(self, x: Tensor, lora: LoraBatch, site: LoraSite, out: Tensor) -> None:
        """See `Kernels.add_lora`."""
        self._lora.add_lora(x, lora, site, out)

    def masked_products(self, x: Tensor, weight: Tensor, rows: Tensor, bitmasks: Tensor, out: MaskedProducts) -> None:
        """See `Kernels.masked_products`."""
        self._chosen.masked_products(x, weight, rows, bitmasks, out)


def _num_parts(x: Tensor | None) -> int:
    return x.shape[0] if x is not None and x.dim() == 3 else 1
