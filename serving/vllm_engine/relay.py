"""One request's way from vLLM's event loop to its reader's.

Owns: the hop between two event loops and the abort that follows when the reader goes away. Knows
nothing of what the outputs mean.

    relay = Relay(asyncio.get_running_loop(), on_output=count)
    asyncio.run_coroutine_threadsafe(relay.run(llm, request, params), vllm_loop)
    item = await relay.get()
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from serving.errors import EngineDeadError
from serving.types import GenerationRequest

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM


class Relay:
    """Made on the reader's loop; `run` goes on vLLM's.

    Args:
        reader_loop: the event loop that `get` is awaited on.
        on_output: called on vLLM's loop whenever an output comes, before it is handed over.
    """

    def __init__(self, reader_loop: asyncio.AbstractEventLoop, on_output: Callable[[], None]) -> None:
        self._reader_loop = reader_loop
        self._on_output = on_output
        self._outputs: asyncio.Queue[RequestOutput | BaseException] = asyncio.Queue()
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self.started = time.monotonic()

    def put(self, item: RequestOutput | BaseException) -> None:
        """Hand over from any thread; a reader whose loop is gone misses nothing it could use."""
        with suppress(RuntimeError):
            self._reader_loop.call_soon_threadsafe(self._outputs.put_nowait, item)

    async def get(self) -> RequestOutput:
        """The next output.

        Raises:
            EngineDeadError: vLLM's process ended, or the engine was closed.
            Exception: whatever else vLLM raised.
        """
        item = await self._outputs.get()
        if isinstance(item, BaseException):
            raise item
        return item

    async def run(self, llm: AsyncLLM, request: GenerationRequest, params: Any) -> None:
        """Drain vLLM's generator. Cancelling this is how vLLM is told to abort the request."""
        self._task = asyncio.current_task()
        if self._cancelled:
            return
        prompt: Any = {"prompt_token_ids": list(request.prompt_token_ids)}
        try:
            async for output in llm.generate(prompt, params, request.request_id):
                self._on_output()
                self.put(output)
        except asyncio.CancelledError:
            self.put(EngineDeadError("the engine was closed while this request ran"))
        except Exception as error:  # nobody awaits this task: what is raised here must reach the reader
            self.put(error)

    def cancel(self, vllm_loop: asyncio.AbstractEventLoop) -> None:
        """Abort, from any thread; nothing happens to a request that has ended."""
        self._cancelled = True
        with suppress(RuntimeError):  # the loop is closed, and so is the request
            vllm_loop.call_soon_threadsafe(self._cancel_task)

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
