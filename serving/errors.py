"""Every error that the package raises on purpose.

Owns: the tree. A user's mistake names the value, the limit and the remedy; a vendor's error is
translated into one of these once, in that vendor's adapter, with `raise … from`.

    ServingError
    ├── InvalidRequestError          the caller must change the request
    │   ├── ContextLengthError       prompt over the model's context
    │   ├── UnknownAdapterError
    │   └── GrammarError             the grammar does not compile
    ├── EngineBusyError              the queue is full; try again later
    ├── EngineDeadError              the engine ended or hangs; restart it
    ├── EngineNotAvailableError      unknown engine, or one that is not installed
    └── WeightsError                 weights missing, altered, extra or unreadable
"""


class ServingError(Exception):
    """Base of all errors of this package."""


class InvalidRequestError(ServingError):
    """The request is wrong; the message says what to change."""


class ContextLengthError(InvalidRequestError):
    """Prompt and answer do not fit the model's context."""


class UnknownAdapterError(InvalidRequestError):
    """The engine has no adapter of that name."""


class GrammarError(InvalidRequestError):
    """The grammar text does not compile."""


class EngineBusyError(ServingError):
    """The bounded queue in front of the engine is full."""


class EngineDeadError(ServingError):
    """The engine's thread or process ended, or does not answer."""


class EngineNotAvailableError(ServingError):
    """No such engine, or its package is not installed; the message says what to install."""


class WeightsError(ServingError):
    """The weights on disk are not those of the lock, or cannot be read."""
