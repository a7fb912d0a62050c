"""Cosines and sines of rotary position embeddings.

Owns: the frequencies (default, linear and llama3 scaling) and a table that grows as positions are
asked for. A position's row has the same bits whenever it was computed: tables grow by whole chunks.

    cos, sin = RotaryTable(RopeConfig(theta=10000.0), head_dim=64)(positions)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_CHUNK = 4096


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's: long wavelengths are stretched by `factor`, short ones kept, between is blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class RopeConfig:
    """How positions become angles."""

    theta: float
    linear_factor: float = 1.0
    llama3: Llama3Scaling | None = None


def inverse_frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """[head_dim // 2] float32, rounded as transformers rounds."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (config.theta**exponents) / config.linear_factor
    return frequencies if config.llama3 is None else _scale_llama3(frequencies, config.llama3)


def _scale_llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_position_embeddings / wavelengths
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = (turns - low) / (high - low)
    blended = (1 - blend) * frequencies / scaling.factor + blend * frequencies
    stretched = torch.where(turns < low, frequencies / scaling.factor, frequencies)
    return torch.where((turns >= low) & (turns <= high), blended, stretched)


class RotaryTable:
    """positions → (cos, sin), each [rows, head_dim // 2] float32."""

    def __init__(self, config: RopeConfig, head_dim: int, device: str = "cpu") -> None:
        self._frequencies = inverse_frequencies(config, head_dim).to(device)
        self._cos = torch.empty(0, head_dim // 2, device=device)
        self._sin = torch.empty(0, head_dim // 2, device=device)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        if positions.numel():
            self.grow(int(positions.max()) + 1)
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)

    @property
    def tables(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions so far, each [positions, head_dim // 2] float32."""
        return self._cos, self._sin

    def grow(self, length: int) -> None:
        """Make tables of at least `length` positions."""
        for start in range(len(self._cos), length, _CHUNK):
            at = torch.arange(start, start + _CHUNK, device=self._cos.device, dtype=torch.float32)
            angles = torch.outer(at, self._frequencies)
            self._cos = torch.cat((self._cos, angles.cos()))
            self._sin = torch.cat((self._sin, angles.sin()))
