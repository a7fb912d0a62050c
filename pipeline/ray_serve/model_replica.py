"""What runs in a replica of the model: one engine, with the package of the machine that the replica is on."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

from ray import serve

from pipeline.batch.errors import BatchError
from pipeline.package.command_inputs import read_schema
from pipeline.package.door_process import served_model
from pipeline.paths import ROOT
from pipeline.ray_serve.served_predictor import Event, ServedPredictor
from pipeline.weights.digest import sha256
from serving.config import Settings

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
        # The door's version of a model is made of the whole schema, which does not name the weights.
        self._schema["info"]["x-weights-digest"] = served_model()[1]
        rules = self._schema["components"]["schemas"]["Input"]["properties"]
        self._defaults = {name: rule["default"] for name, rule in rules.items() if "default" in rule}
        predictor = ServedPredictor(serve.get_replica_context().replica_id.unique_id)
        predictor.setup()
        self._predictor = predictor

    def __del__(self) -> None:
        """Ray Serve's way to end a replica: end the engine, with processes that it has started."""
        if hasattr(self, "_predictor"):
            self._predictor.engine.close()

    async def predict(self, inputs: Mapping[str, Any], trace_context: Mapping[str, str]) -> AsyncGenerator[Event]:
        """The events of a prediction.

        Raises:
            EngineDeadError: the engine died.
        """
        async with aclosing(self._predictor.events({**self._defaults, **inputs}, trace_context)) as events:
            async for event in events:
                yield event

    async def openapi(self) -> dict[str, Any]:
        """The model's OpenAPI schema, which also names the weights."""
        return self._schema

    async def check_health(self) -> None:
        """Called by Ray Serve, which replaces a replica whose check fails.

        Raises:
            EngineDeadError: the engine generates no token.
        """
        await self._predictor.engine.health(HEALTH_SECONDS)
