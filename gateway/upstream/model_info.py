"""Knows what the Cog servers run: the model's schema and version."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.errors import FieldError, InvalidInputError, UnavailableError
from gateway.predictions.prediction import now
from gateway.upstream.model_server import UpstreamError
from gateway.upstream.pool import Pool

if TYPE_CHECKING:
    from jsonschema import ValidationError


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One version of the model.

    Args:
        name: the model's name, OWNER/NAME.
        version: the version, 64 hexadecimal digits of schema and weights.
        created_at: the time when the gateway first saw the version, in UTC as ISO 8601 text.
        cog_version: the version of the Cog server.
        openapi: the schema of Cog's API with that of predict's inputs and output.
        weights_digest: the digest of the weights, where the gateway was told.
    """

    name: str
    version: str
    created_at: str
    cog_version: str
    openapi: Mapping[str, Any]
    weights_digest: str | None = None

    @property
    def input_properties(self) -> Mapping[str, Any]:
        """The JSON Schemas of predict's parameters by name."""
        return dict(self.schemas.get("Input", {}).get("properties", {}))

    @property
    def required_texts(self) -> tuple[str, ...]:
        """The names of the texts that every prediction needs, in the order of predict's parameters."""
        required, known = self.schemas.get("Input", {}).get("required", []), self.input_properties
        texts = [name for name in required if known.get(name, {}).get("type") == "string"]
        return tuple(sorted(texts, key=lambda name: known[name].get("x-order", 0)))

    @property
    def has_conversations(self) -> bool:
        """Whether a prediction may take messages."""
        return "messages" in self.input_properties

    def without_nulls(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs without optional ones that are null: the schema allows that, and Cog refuses it."""
        required = self.schemas.get("Input", {}).get("required", [])
        return {name: value for name, value in inputs.items() if value is not None or name in required}

    def check_names(self, inputs: Mapping[str, object]) -> None:
        """Refuse inputs that the model does not have, which Cog would ignore.

        Raises:
            InvalidInputError: there is such an input.
        """
        known = self.input_properties
        if known and (unknown := [name for name in inputs if name not in known]):
            text = f"is not an input of this model; it has {', '.join(known)}"
            raise InvalidInputError.of(tuple(FieldError(("input", name), text, "extra") for name in unknown))

    def check(self, inputs: Mapping[str, object]) -> None:
        """Check inputs as Cog does, for predictions that have to wait before Cog sees them.

        Raises:
            InvalidInputError: the inputs are not what the schema asks.
        """
        from jsonschema import Draft202012Validator  # slow to import, and needed under load only

        # The schema of the inputs refers to others by their place in the whole document.
        schema = {**self.openapi, "$ref": "#/components/schemas/Input"}
        wrong = [_field_error(error) for error in Draft202012Validator(schema).iter_errors(dict(inputs))]
        if wrong and "Input" in self.schemas:
            raise InvalidInputError.of(tuple(wrong))

    @property
    def schemas(self) -> Mapping[str, Any]:
        """The schemas of Cog's document by name: `Input`, `Output` and those that they refer to."""
        return dict(self.openapi.get("components", {}).get("schemas", {}))


def _field_error(error: ValidationError) -> FieldError:
    """The error with Cog's words for a missing input."""
    path = ("input", *(str(part) for part in error.absolute_path))
    if error.validator == "required":
        return FieldError((*path, error.message.split("'")[1]), "Field required", "missing")
    return FieldError(path, error.message, str(error.validator))


class ModelInfoReader:
    """Reads the schema from a healthy server, and again when a server has come back.

    Args:
        pool: the servers.
        name: the model's name, OWNER/NAME.
        weights_digest: the digest of the weights, a part of the version, because the schema does not name the weights.
            Another one is set when the pool's servers are replaced.
    """

    def __init__(self, pool: Pool, *, name: str, weights_digest: str | None) -> None:
        self._pool = pool
        self._name = name
        self.weights_digest = weights_digest
        self._info: ModelInfo | None = None
        self._read_at = 0  # number of the pool's returns
        self._reading = asyncio.Lock()

    async def read(self) -> ModelInfo:
        """What is known of the model.

        Raises:
            UnavailableError: no server has answered yet.
        """
        if self._info is None or self._read_at != self._pool.num_returns:
            async with self._reading:
                number = self._pool.num_returns
                if self._info is None or self._read_at != number:
                    self._info, self._read_at = await self._ask(), number
        return self._info

    async def check_inputs(self, inputs: Mapping[str, object]) -> None:
        """Check inputs that Cog does not see at once, as `ModelInfo.check` does.

        Raises:
            InvalidInputError: the inputs are not what the schema asks.
            UnavailableError: no server has answered yet.
        """
        (await self.read()).check(inputs)

    async def _ask(self) -> ModelInfo:
        digest = self.weights_digest
        openapi = await self._openapi()
        text = json.dumps(openapi, sort_keys=True) + (digest or "")
        version = hashlib.sha256(text.encode()).hexdigest()
        cog_version = str(openapi.get("info", {}).get("version", ""))
        if self._info is not None and self._info.version == version:
            return self._info
        return ModelInfo(self._name, version, now(), cog_version, openapi, digest)

    async def _openapi(self) -> dict[str, Any]:
        """The schema of the first server that answers: one that counts as healthy may just have stopped."""
        failure: UpstreamError | None = None
        for server in [each for each in self._pool.servers if each.is_healthy]:
            try:
                return await server.upstream.openapi()
            except UpstreamError as error:
                failure = error
        if failure is not None:
            raise UnavailableError(f"the model's schema cannot be read: {failure}", retry_after=2) from failure
        troubles = "; ".join(each.trouble for each in self._pool.servers)
        raise UnavailableError(f"no Cog server is ready: {troubles}", retry_after=2)
