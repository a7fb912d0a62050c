"""A damaged adapter_config.json gives a typed error that can be printed, or an adapter with usable numbers."""

from __future__ import annotations

import math
from pathlib import Path

from pipeline.weights.errors import CheckpointError
from pipeline.weights.merging.lora_adapter import PeftAdapter
from tests.pipeline.weights.merging.trained_adapters import QWEN, trained
from tests.serving.weights.fuzzing import CASES, run


def test_adapter_configurations(tmp_path: Path) -> None:
    """Of an adapter with patterns, DoRA, biases, saved modules and trained tokens, as PEFT writes it."""
    trained(
        tmp_path,
        QWEN,
        use_dora=True,
        bias="all",
        modules_to_save=["norm"],
        trainable_token_indices={"embed_tokens": [1, 5]},
        rank_pattern={"up_proj": 4},
        alpha_pattern={"q_proj": 6},
    )
    folder = tmp_path / "adapter"
    config = folder / "adapter_config.json"

    def check(text: bytes) -> bool:
        config.write_bytes(text)
        try:
            adapter = PeftAdapter(folder)
            tokens = [adapter.token_rows(layer)[0] for layer in adapter.tokens]
        except CheckpointError as error:
            assert str(folder) in str(error)
            str(error).encode()  # it can be printed
            return False
        assert adapter.layers()
        assert all(math.isfinite(adapter.config.scaling_of(layer)) for layer in adapter.layers())
        assert all((rows >= 0).all() for rows in tokens)
        return True

    assert 0 < run(config.read_bytes(), check) < CASES
