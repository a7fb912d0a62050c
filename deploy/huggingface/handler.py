"""Runs this package as a Hugging Face Inference Endpoint.

Put this file at the root of the endpoint's repository, beside the package's files and weights/. The endpoint's server
calls `EndpointHandler(path)` once, and then the object with the JSON of each request.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

with contextlib.suppress(ImportError):  # a clone of this project has its code beside it
    import package  # noqa: F401 (the way to the package's code, see package.py)

from pipeline.batch.local_worker import answer_row, prepare_row
from pipeline.batch.row_inputs import RowInputs
from pipeline.batch.rows import Row, RowAnswer
from pipeline.in_flight import in_flight
from pipeline.package.command_inputs import read_schema
from serving.config import Settings
from serving.model import Model


class RefusedInputError(ValueError):
    """The request is wrong, or its answer must not be returned; the endpoint answers with this message."""


class EndpointHandler:
    """What the endpoint's server looks for in handler.py.

    Args:
        path: folder of the repository; empty for the working directory.

    Raises:
        ServingError: the weights do not match weights.lock, or the engine does not start.
    """

    def __init__(self, path: str = "") -> None:
        os.environ.setdefault("WEIGHTS_LOCK", str(Path(path) / "weights.lock"))
        schema = read_schema()
        declared = schema["components"]["schemas"]["Input"]
        required = declared.get("required", [])
        self._only_input = required[0] if len(required) == 1 else None
        self._known = tuple(declared["properties"])
        self._inputs = RowInputs(schema, self._known, {}, ())
        settings = Settings()
        self._concurrency = settings.max_num_seqs
        self.model = Model.load(settings)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="predictions", daemon=True).start()

    def __call__(self, data: Mapping[str, Any]) -> Any:
        """Answer one request.

        Args:
            data: `inputs` is an object of the model's inputs by name, a text if the model needs only one input, or a
                list of either. `parameters` (optional) has inputs that all of them share, such as `max_tokens`.

        Returns:
            {"output", "input_tokens", "output_tokens"}; for a list, a list of these, where {"error"} stands for an
            answer that failed.

        Raises:
            RefusedInputError: the request is wrong, or its only answer failed; the message says why.
            EngineDeadError: the engine failed; the endpoint must be restarted.
        """
        given = data.get("inputs")
        several = isinstance(given, list)
        rows = [
            Row(number, self._named(one, data.get("parameters") or {}))
            for number, one in enumerate(given if isinstance(given, list) else [given])
        ]
        answers = asyncio.run_coroutine_threadsafe(self._answer_all(rows), self._loop).result()
        if several:
            return [_as_json(answer) for answer in answers]
        if answers[0].error is not None:
            raise RefusedInputError(answers[0].error)
        return _as_json(answers[0])

    async def _answer_all(self, rows: list[Row]) -> list[RowAnswer]:
        async def ask(row: Row) -> RowAnswer:
            return await answer_row(self.model, await asyncio.to_thread(prepare_row, self.model, self._inputs, row))

        answers = [answer async for answer in in_flight(ask, rows, self._concurrency)]
        return sorted(answers, key=lambda answer: answer.number)

    def _named(self, given: Any, parameters: Any) -> dict[str, Any]:
        """Inputs by name."""
        if isinstance(given, str) and self._only_input is not None:
            given = {self._only_input: given}
        if not isinstance(given, dict) or not isinstance(parameters, dict):
            raise RefusedInputError(f"inputs must be an object; the model's inputs are {', '.join(self._known)}")
        named = {**parameters, **given}
        if unknown := sorted(named.keys() - set(self._known)):
            raise RefusedInputError(f"{unknown[0]}: no such input; there are {', '.join(self._known)}")
        return named


def _as_json(answer: RowAnswer) -> dict[str, Any]:
    if answer.error is not None:
        return {"error": answer.error}
    return {"output": answer.answer, "input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens}
