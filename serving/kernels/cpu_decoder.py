"""Run the embedding and all decoder layers in one call to C++."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, byref, c_void_p, pointer
from operator import is_

import torch
from torch import Tensor

from serving.kernels.arena import map_memory
from serving.kernels.base import Activations, AttentionMetadata, DecoderLayerWeights, DecoderWeights
from serving.kernels.cpu_lora import LoraTables
from serving.kernels.kv_cache import KvCaches
from serving.kernels.library import CpuLibrary
from serving.kernels.lora import LoraBatch
from serving.kernels.rope import RotaryTable
from serving.kernels.shape_checks import (
    DENSE_DTYPES,
    KernelArgumentError,
    check_adjustment,
    check_metadata,
    check_tensor,
    require,
)
from serving.kernels.structs import (
    CDecoder,
    CLayer,
    CPass,
    adjustment_struct,
    batch_struct,
    dtype_code,
    linear_struct,
    shape_struct,
)


class _Caches:
    """The KV caches of all layers, checked to have the same number of blocks and the same block size."""

    def __init__(self, kv_caches: Sequence[Tensor], weights: DecoderWeights, checker: KvCaches) -> None:
        layers = len(weights.layers)
        require(len(kv_caches) == layers, f"{len(kv_caches)} KV caches for {layers} layers")
        first = kv_caches[0]
        for cache in kv_caches:
            self.block_size = checker.check(cache, weights.attention)
            require(cache.shape == first.shape, "kv_caches have different shapes")
        self.tensors = tuple(kv_caches)
        self.addresses = (c_void_p * layers)(*(cache.data_ptr() for cache in kv_caches))
        self.num_blocks = first.shape[0]


def _same(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(tensors) == len(others) and all(map(is_, tensors, others))


class CpuDecoderPlan:
    """See `DecoderPlan`. One thread at a time may use it."""

    def __init__(
        self,
        embedding: Tensor,
        weights: DecoderWeights,
        rotary: RotaryTable,
        library: CpuLibrary,
        activations: Activations,
    ) -> None:
        check_tensor("embedding", embedding, (None, weights.hidden_size), DENSE_DTYPES)
        self._embedding, self._weights = embedding, weights  # keeps tensors alive: the structs hold only addresses
        self._rotary = rotary
        self._library = library
        self._cache_checker = KvCaches(library, activations)
        layers = [_layer_struct(layer, activations) for layer in weights.layers]
        for layer in weights.layers:
            if layer.qkv_adjustment is not None:
                check_adjustment(layer.qkv_adjustment, weights.attention)
            for linear, bias in (
                (layer.output, layer.output_bias),
                (layer.gate_up, layer.gate_up_bias),
                (layer.down, layer.down_bias),
            ):
                if bias is not None:
                    check_tensor("bias", bias, (linear.out_features,), torch.float32)
        self._decoder = CDecoder(
            embedding.data_ptr(),
            dtype_code(embedding.dtype),
            embedding.shape[0],
            *(None, None, 0),
            (CLayer * len(layers))(*layers),
            len(layers),
            weights.final_norm.data_ptr(),
            shape_struct(weights.attention, activations),
            weights.hidden_size,
            weights.intermediate_size,
            weights.rms_norm_eps,
        )
        self._lora_tables = LoraTables(weights)
        self._workspace = torch.empty(0)
        self._caches: _Caches | None = None
        self._set_rotary_tables()

    def run(
        self,
        input_ids: Tensor,
        positions: Tensor,
        kv_caches: Sequence[Tensor],
        metadata: AttentionMetadata,
        out: Tensor,
        lora: LoraBatch | None = None,
    ) -> None:
        """See `DecoderPlan.run`."""
        rows = input_ids.shape[0]
        check_tensor("input_ids", input_ids, (rows,), torch.int32)
        check_tensor("positions", positions, (rows,), torch.int32)
        check_tensor("out", out, (rows, self._weights.hidden_size), torch.float32)
        check_metadata(metadata, rows)
        caches = self._caches_struct(kv_caches)
        adapters = None if lora is None else self._lora_tables.arguments(lora, rows)
        arguments = CPass(
            input_ids.data_ptr(),
            positions.data_ptr(),
            caches.addresses,
            metadata.slot_mapping.data_ptr(),
            batch_struct(metadata, rows, caches.num_blocks, caches.block_size),
            self._workspace_for(rows).data_ptr(),
            out.data_ptr(),
            None if adapters is None else addressof(adapters.struct),
        )
        try:
            self._decode(arguments)
        except KernelArgumentError:  # perhaps a position is past the end of the rotary tables, which is rare
            if not rows or int(positions.max()) < self._decoder.num_angles:
                raise
            self._rotary.grow(int(positions.max()) + 1)
            self._set_rotary_tables()
            self._decode(arguments)

    def _decode(self, arguments: CPass) -> None:
        what = "a token id, a position, a row, a slot, a block or a context"
        self._library.call_checked("hk_decode", what, byref(self._decoder), byref(arguments))

    def _set_rotary_tables(self) -> None:
        self._tables = cos, sin = self._rotary.tables  # kept alive here: growing replaces the tables
        check_tensor("cos", cos, (None, self._weights.attention.head_dim // 2), torch.float32)
        check_tensor("sin", sin, tuple(cos.shape), torch.float32)
        self._decoder.cos, self._decoder.sin = cos.data_ptr(), sin.data_ptr()
        self._decoder.num_angles = cos.shape[0]

    def _caches_struct(self, kv_caches: Sequence[Tensor]) -> _Caches:
        """The caches' addresses; they are checked unless they are the same tensors as in the last call."""
        last = self._caches
        if last is None or not _same(kv_caches, last.tensors):
            self._caches = last = _Caches(kv_caches, self._weights, self._cache_checker)
        return last

    def _workspace_for(self, rows: int) -> Tensor:
        floats = self._library.workspace_floats(self._decoder, rows)
        if floats > self._workspace.numel():
            self._workspace = map_memory(4 * floats).view(torch.float32)
        return self._workspace


def _layer_struct(layer: DecoderLayerWeights, activations: Activations) -> CLayer:
    return CLayer(
        layer.input_norm.data_ptr(),
        layer.post_attention_norm.data_ptr(),
        pointer(linear_struct(layer.qkv, activations)),
        pointer(linear_struct(layer.output, activations, layer.output_bias)),
        pointer(linear_struct(layer.gate_up, activations, layer.gate_up_bias)),
        pointer(linear_struct(layer.down, activations, layer.down_bias)),
        adjustment_struct(layer.qkv_adjustment),
    )
