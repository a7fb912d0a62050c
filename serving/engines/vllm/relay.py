"""Pass a request's outputs from vLLM's event loop to its reader's, and abort the request when the reader leaves.

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
    """A queue between two event loops: created on the reader's loop, while `run` runs on vLLM's.

    Args:
        reader_loop: the event loop on which `get` is awaited.
        on_output: called on vLLM's loop for each output, before it is passed on.
    """

    def __init__(self, reader_loop: asyncio.AbstractEventLoop, on_output: Callable[[], None]) -> None:
        self._reader_loop = reader_loop
        self._on_output = on_output
        self._outputs: asyncio.Queue[RequestOutput | BaseException] = asyncio.Queue()
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        self.started = time.monotonic()

    def put(self, item: RequestOutput | BaseException) -> None:
        """Send an output or an error, from any thread; does nothing if the reader's loop is closed."""
        with suppress(RuntimeError):
            self._reader_loop.call_soon_threadsafe(self._outputs.put_nowait, item)

    async def get(self) -> RequestOutput:
        """The next output.

        Raises:
            EngineDeadError: the engine was closed.
            Exception: any error that vLLM raised.
        """
        item = await self._outputs.get()
        if isinstance(item, BaseException):
            raise item
        return item

    async def run(self, llm: AsyncLLM, request: GenerationRequest, params: Any, lora: Any = None) -> None:
        """Iterate over vLLM's outputs. Cancelling this task makes vLLM abort the request."""
        self._task = asyncio.current_task()
        if self._cancelled:
            return
        prompt: Any = {"prompt_token_ids": list(request.prompt_token_ids)}
        try:
            async for output in llm.generate(prompt, params, request.request_id, lora_request=lora):
                self._on_output()
                self.put(output)
        except asyncio.CancelledError:
            self.put(EngineDeadError("the engine was closed while this request ran"))
        except Exception as error:  # no one awaits this task, so the error is sent to the reader
            self.put(error)

    def cancel(self, vllm_loop: asyncio.AbstractEventLoop) -> None:
        """Abort the request, from any thread; does nothing if it has finished."""
        self._cancelled = True
        with suppress(RuntimeError):  # the loop is closed, and the request with it
            vllm_loop.call_soon_threadsafe(self._cancel_task)

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
