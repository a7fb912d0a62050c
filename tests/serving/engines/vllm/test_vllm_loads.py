"""Adapters that are asked their golden prompts hold up no other's load."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serving.checkpoint import Checkpoint
from serving.config import Settings
from serving.engines.vllm.adapters import open_store
from serving.weights.adapter_files import CONFIG, GOLDEN, TENSORS
from tests.serving.engines.paged.adapter_folders import write_registry
from tests.small_model import ADAPTER, WEIGHTS

pytestmark = [pytest.mark.vllm, pytest.mark.weights]
NAMES = ("one", "two", "three")
ANSWER = [5, 6, 7]


class AllAtOnce:
    """A client whose adapters answer only when all of them have been asked."""

    def __init__(self) -> None:
        self._all_asked = threading.Barrier(len(NAMES))

    async def add_lora(self, request: Any) -> None:
        """Nothing to load."""

    async def generate(self, prompt: Any, params: Any, request_id: str, lora_request: Any) -> AsyncIterator[Any]:
        await asyncio.to_thread(self._all_asked.wait, 20)
        yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=ANSWER)])


async def test_several_adapters_are_asked_their_golden_prompts_at_once(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).mkdir()
        for file in (CONFIG, TENSORS):
            shutil.copy(ADAPTER / file, tmp_path / name / file)
        golden = {"prompt": [1, 2], "answer": ANSWER, "ends": False, "text": ""}
        (tmp_path / name / GOLDEN).write_text(json.dumps(golden) + "\n")
    listed = write_registry(tmp_path / "adapters.yaml", {name: tmp_path / name for name in NAMES}, max_rank="32")

    def call(make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run(make())

    settings = Settings(engine="vllm", weights_dir=WEIGHTS, adapters=listed)
    store = open_store(settings, Checkpoint.of(settings), AllAtOnce(), call, call)

    async def load(name: str) -> None:
        async with store.lease(name) as adapter:
            assert adapter is not None

    try:
        await asyncio.gather(*(load(name) for name in NAMES))
    finally:
        store.close()
    assert list(store.in_memory) == list(NAMES)
