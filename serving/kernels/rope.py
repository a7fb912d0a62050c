"""Cosines and sines of rotary position embeddings (Su et al. 2021), with default, linear, llama3 or yarn scaling."""

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
class YarnScaling:
    """YaRN (Peng et al. 2023): pairs that turn `slow` times or less in the original context are stretched by `factor`.

    Pairs that turn `fast` times or more are kept, those between are interpolated. Cosines and sines are multiplied by
    `magnitude`, and so the scores of attention by its square.
    """

    factor: float
    original_max_position_embeddings: int
    magnitude: float
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True  # the limits of the interpolation are rounded to whole pairs

    def __post_init__(self) -> None:
        if self.fast <= self.slow:
            raise ValueError(f"beta_fast = {self.fast:g} is not above beta_slow = {self.slow:g}")


@dataclass(frozen=True)
class RopeConfig:
    """The parameters of the rotary embedding: its base theta and one kind of scaling."""

    theta: float
    linear_factor: float = 1.0
    llama3: Llama3Scaling | None = None
    yarn: YarnScaling | None = None


def inverse_frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """[head_dim // 2] float32, rounded as in transformers."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    if config.yarn is not None:
        return _scale_yarn(config.theta**exponents, config.theta, config.yarn)
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


def _scale_yarn(wavelengths: Tensor, theta: float, scaling: YarnScaling) -> Tensor:
    """wavelengths: [pairs] float32, in positions a radian → inverse frequencies [pairs] float32."""
    pairs = len(wavelengths)

    def pair_that_turns(turns: float) -> float:
        positions_of_a_radian = scaling.original_max_position_embeddings / (2 * math.pi * turns)
        return pairs * math.log(positions_of_a_radian) / math.log(theta)

    low, high = pair_that_turns(scaling.fast), pair_that_turns(scaling.slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    high += 0.001 if high == low else 0.0
    kept = 1 - torch.clamp((torch.arange(pairs, dtype=torch.float32) - low) / (high - low), 0, 1)
    return 1.0 / (scaling.factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept


class RotaryTable:
    """Maps positions [T] int32 to (cos, sin), each [T, head_dim // 2] float32.

    The table grows in fixed chunks, so that a position's row has the same bits whenever it is computed.
    """

    def __init__(self, config: RopeConfig, head_dim: int, device: str = "cpu") -> None:
        self._frequencies = inverse_frequencies(config, head_dim).to(device)
        self._magnitude = 1.0 if config.yarn is None else config.yarn.magnitude
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
            self._cos = torch.cat((self._cos, angles.cos() * self._magnitude))
            self._sin = torch.cat((self._sin, angles.sin() * self._magnitude))
