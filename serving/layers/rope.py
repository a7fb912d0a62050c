"""Cosines and sines of rotary position embeddings (Su et al. 2021), with default, linear or llama3 scaling."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_CHUNK = 4096  # positions


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's scaling: long wavelengths are stretched by `factor`, short ones kept, those between interpolated."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class RopeConfig:
    """The parameters of the rotary embedding: its base theta and one kind of scaling."""

    theta: float
    linear_factor: float = 1.0
    llama3: Llama3Scaling | None = None


def inverse_frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """[head_dim // 2] float32, rounded as in transformers."""
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
    """Maps positions [T] int32 to (cos, sin), each [T, head_dim // 2] float32; see `RotaryTables`.

    The table grows in fixed chunks, so that a position's row has the same bits whenever it is computed.
    """

    def __init__(self, config: RopeConfig, head_dim: int, device: str = "cpu") -> None:
        self._frequencies = inverse_frequencies(config, head_dim).to(device)
        self._cos = torch.empty(0, head_dim // 2, device=device)
        self._sin = torch.empty(0, head_dim // 2, device=device)
        self._is_complete = False

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions: [T] int32 → cosines and sines, each [T, head_dim // 2] float32."""
        if positions.numel() and not self._is_complete:
            self.grow(int(positions.max()) + 1)
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)

    @property
    def tables(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines of all positions so far, each [positions, head_dim // 2] float32."""
        return self._cos, self._sin

    def complete(self, length: int) -> None:
        """Extend the tables to `length`, which no later position reaches, so that none is looked at any more.

        Looking at positions on a GPU waits for it, and cannot be recorded in a graph.
        """
        self.grow(length)
        self._is_complete = True

    def grow(self, length: int) -> None:
        """Extend the tables to at least `length` positions."""
        for start in range(len(self._cos), length, _CHUNK):
            positions = torch.arange(start, start + _CHUNK, device=self._cos.device, dtype=torch.float32)
            angles = torch.outer(positions, self._frequencies)
            self._cos = torch.cat((self._cos, angles.cos()))
            self._sin = torch.cat((self._sin, angles.sin()))
