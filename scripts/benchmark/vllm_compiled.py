"""vLLM with its model compiled: slower to start than the eager mode that we serve with, faster then.

Owns: that one option. Knows nothing of the rest, which is `serving.vllm_engine`'s.

    engine = create(Settings(engine="vllm"))
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from serving.config import Settings
from serving.engine import Engine
from serving.text import Tokenizer


def create(settings: Settings) -> Engine:
    """Load and compile. A benchmark looks behind the front of `serving` by name, as `create_engine` does."""
    options = importlib.import_module("serving.vllm_engine.options")
    adapter = importlib.import_module("serving.vllm_engine.engine")
    options.set_environment()
    args = dataclasses.replace(options.engine_args(settings), enforce_eager=False)
    async_llm = importlib.import_module("vllm.v1.engine.async_llm").AsyncLLM

    def start() -> Any:
        return async_llm.from_engine_args(args)

    engine: Engine = adapter.VllmEngine(
        start,
        tokenizer=Tokenizer.from_dir(settings.weights_dir),
        max_num_seqs=settings.max_num_seqs,
        max_queue=settings.max_queue,
    )
    return engine
