"""A subclass of vLLM's CPU worker that fixes seeded sampling for prompts that are computed in chunks.

A step samples a token for every request, even in the middle of its prompt, and discards it. vLLM 0.32 then sets the
request's random generator back by one number, which PyTorch's CPU generators do not support: the worker fails, and with
it the engine. Here a request in the middle of its prompt draws no number at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from vllm.v1.worker.cpu_worker import CPUWorker


class SeededCPUWorker(CPUWorker):  # type: ignore[misc]
    """The fixed worker; `AsyncEngineArgs.worker_cls` names it."""

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Like vLLM's method, with the generators of unfinished prompts removed during the call."""
        if self.use_v2_model_runner:  # has no such generators
            return super().sample_tokens(grammar_output)
        runner = self.model_runner
        generators = runner.input_batch.generators
        unfinished = np.flatnonzero(runner.discard_request_mask.np[: runner.input_batch.num_reqs])
        held = {place: generators.pop(place) for place in unfinished.tolist() if place in generators}
        try:
            return super().sample_tokens(grammar_output)
        finally:
            generators.update(held)
