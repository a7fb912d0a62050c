"""Errors that a caller can cause or must know of; each HTTP API writes them in its own shape."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldError:
    """What is wrong with one part of a request.

    Args:
        path: the place of that part, such as ("input", "max_tokens").
        message: what is wrong, for people.
        kind: a word for programs, such as `required`.
    """

    path: tuple[str, ...]
    message: str
    kind: str = "invalid"


class GatewayError(Exception):
    """A request that cannot be answered.

    Args:
        detail: one sentence for people.
        fields: the parts of the request that are wrong.
        retry_after: seconds after which the same request may succeed.
    """

    status = 400
    title = "Bad request"

    def __init__(self, detail: str, *, fields: tuple[FieldError, ...] = (), retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.fields = fields
        self.retry_after = retry_after


class BadRequestError(GatewayError):
    """The request cannot be read, or a header or parameter is wrong."""


class InvalidInputError(GatewayError):
    """The request can be read, but some field has a value that is not allowed."""

    status = 422
    title = "Input validation failed"

    @classmethod
    def of(cls, fields: tuple[FieldError, ...]) -> InvalidInputError:
        """An error whose text lists the fields."""
        lines = "\n".join(f"- {'.'.join(field.path) or 'body'}: {field.message}" for field in fields)
        return cls(lines, fields=fields)

    @classmethod
    def at(cls, path: tuple[str, ...], message: str, kind: str = "invalid") -> InvalidInputError:
        """An error of one field; see `FieldError`."""
        return cls.of((FieldError(path, message, kind),))


class UnauthorizedError(GatewayError):
    """The request has no API key, or one that is not valid."""

    status = 401
    title = "Unauthorized"


class ForbiddenError(GatewayError):
    """The request comes from where it may not come from, or its caller may not do this."""

    status = 403
    title = "Forbidden"


class NotFoundError(GatewayError):
    """There is nothing with this address, name or id."""

    status = 404
    title = "Not found"


class BodyTooLargeError(GatewayError):
    """The request's body is over the limit."""

    status = 413
    title = "Body too large"


class BodyTimeoutError(GatewayError):
    """The client was too slow in sending its body."""

    status = 408
    title = "Request timeout"


class TooManyPredictionsError(GatewayError):
    """Too many predictions run or wait, or a caller has more than it may have."""

    status = 429
    title = "Too many predictions"


class UnavailableError(GatewayError):
    """No Cog server can be asked at present."""

    status = 503
    title = "The model is not available"
