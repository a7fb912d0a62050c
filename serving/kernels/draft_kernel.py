"""Choose the kernel that runs a draft model."""

from __future__ import annotations

from serving.kernels.build import build_library
from serving.kernels.draft_base import DraftKernel
from serving.kernels.draft_cpp import CppDraft
from serving.kernels.draft_numpy import NumpyDraft
from serving.weights.draft_weights import DraftWeights


def create_draft_kernel(weights: DraftWeights) -> DraftKernel:
    """The C++ kernel, or numpy if it cannot be compiled."""
    path = build_library()
    return NumpyDraft(weights) if path is None else CppDraft(weights, path)
