"""What runs in a replica of the model: one engine, with the package of the machine that the replica is on."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

from ray import serve

from pipeline.batch.errors import BatchError
from pipeline.package.cog_server import served_model
from pipeline.package.command_inputs import read_schema
from pipeline.paths import ROOT
from pipeline.weights.digest import sha256
from serving.config import Settings
from serving.errors import EngineDeadError, ServingError
from serving.model import Model
from tasks.errors import TaskError

Event = tuple[str, dict[str, Any]]  # its name and what it carries, see `gateway.upstream.model_server.UpstreamEvent`
HEALTH_SECONDS: Final = 60.0


class ModelReplica:
    """One engine; Ray Serve calls the methods, several at the same time.

    Args:
        lock: SHA-256 of the lock of weights that is being deployed.

    Raises:
        BatchError: this machine has another lock.
        ServingError: the weights do not match the lock, or the engine does not start.
    """

    def __init__(self, lock: str) -> None:
        os.chdir(ROOT)  # paths of the weights in the settings are relative to it
        if sha256(path := Settings().weights_lock) != lock:
            raise BatchError(f"{path.absolute()} on {os.uname().nodename} is another lock than the one deployed")
        self._schema = read_schema()
        # The gateway's version of a model is made of the whole schema, which does not name the weights.
        self._schema["info"]["x-weights-digest"] = served_model()[1]
        rules = self._schema["components"]["schemas"]["Input"]["properties"]
        self._defaults = {name: rule["default"] for name, rule in rules.items() if "default" in rule}
        self._name = serve.get_replica_context().replica_id.unique_id
        self._model = Model.load(Settings())

    def __del__(self) -> None:
        """Ray Serve's way to end a replica: end the engine, with processes that it has started."""
        if hasattr(self, "_model"):
            self._model.close()

    async def predict(self, inputs: Mapping[str, Any], context: Mapping[str, str]) -> AsyncGenerator[Event]:
        """The events that Cog's server would send for a prediction; the last is `completed`.

        Raises:
            EngineDeadError: the engine died, so another one may answer.
        """
        answer = self._model.ask({**self._defaults, **inputs}, context)
        started, end = time.monotonic(), {"status": "succeeded"}
        metrics: dict[str, Any] = {"replica": self._name}
        try:
            async with aclosing(answer.pieces()) as pieces:
                async for piece in pieces:
                    yield "output", {"chunk": piece}
        except EngineDeadError:
            raise
        except (ServingError, TaskError) as problem:
            end = {"status": "failed", "error": str(problem)}
            metrics["error_type"] = type(problem).__name__
        except Exception as problem:  # as under Cog, whatever is wrong with one prediction must not stop the others
            end = {"status": "failed", "error": f"internal error: {problem!r}"}
        for note in answer.notes:
            yield "log", {"data": f"{note}\n"}
        metrics |= answer.metrics | {"predict_time": time.monotonic() - started}
        yield "completed", {**end, "metrics": metrics}

    async def openapi(self) -> dict[str, Any]:
        """The model's OpenAPI schema, which also names the weights."""
        return self._schema

    async def check_health(self) -> None:
        """Called by Ray Serve, which replaces a replica whose check fails.

        Raises:
            EngineDeadError: the engine generates no token.
        """
        await self._model.engine.health(HEALTH_SECONDS)
