"""Find the few tokens that may have the largest logit, by a 4-bit copy of the head; cpp/screen.h has the proof."""

from __future__ import annotations

from ctypes import byref

import torch
from torch import Tensor

from serving.kernels.base import Activations, AwqWeight
from serving.kernels.library import CpuLibrary
from serving.kernels.shape_checks import check_tensor
from serving.kernels.structs import CScreen, awq_struct, dense_struct


class CpuHeadScreen:
    """See `HeadScreen`.

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
        check_tensor("x", x, (None, inputs), torch.float32)
        check_tensor("bitmasks", bitmasks, (count, -(-outputs // 32)), torch.int32)
        chosen, sums = x.index_select(0, rows), torch.empty(count, 2)
        addresses = (chosen.data_ptr(), count, bitmasks.data_ptr(), sums.data_ptr())
        self._library.call_checked("hk_narrow", "a bit", byref(self._head), byref(self._screen), *addresses)
        return sums
