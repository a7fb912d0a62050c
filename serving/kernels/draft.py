"""Which kernel computes a draft model.

kernel = create_draft_kernel(DraftWeights.load(path, embedding))
"""

from __future__ import annotations

from serving.draft_weights import DraftWeights
from serving.kernels.build import build_library
from serving.kernels.draft_base import DraftKernel
from serving.kernels.draft_cpp import CppDraft
from serving.kernels.draft_numpy import NumpyDraft


def create_draft_kernel(weights: DraftWeights) -> DraftKernel:
    """The fastest there is."""
    path = build_library()
    return NumpyDraft(weights) if path is None else CppDraft(weights, path)
