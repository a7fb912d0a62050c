"""A table of GPUs for rent: memory, bandwidth, arithmetic, price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PRICES_FROM: Final = "Replicate's public price list as of 2025, not checked since; give --price for today's"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card.

    Args:
        name: its usual short name.
        memory_mib: its memory as nvidia-smi shows it.
        bandwidth: the bandwidth of its memory, in bytes per second.
        flops: dense 16-bit tensor operations per second.
        price: dollars per second on Replicate; None if Replicate does not rent it.
        note: remark about 4-bit weights on this card.
    """

    name: str
    memory_mib: int
    bandwidth: float
    flops: float
    price: float | None = None
    note: str = ""


# Memory as nvidia-smi shows it, the rest from NVIDIA's data sheets (dense figures, without sparsity).
GPUS: Final = (
    Gpu("T4", 15_360, 320e9, 65e12, 0.000225, "no bfloat16 and no Marlin kernels: AWQ runs in float16, slower"),
    Gpu("L4", 23_034, 300e9, 121e12),
    Gpu("A10G", 23_028, 600e9, 70e12),
    Gpu("L40S", 46_068, 864e9, 362e12, 0.000975),
    Gpu("A100-40", 40_960, 1_555e9, 312e12),
    Gpu("A100-80", 81_920, 2_039e9, 312e12, 0.0014),
    Gpu("H100", 81_559, 3_350e9, 989e12, 0.001525),
    Gpu("H200", 143_771, 4_800e9, 989e12),
    Gpu("B200", 183_359, 8_000e9, 2_250e12),
)
