"""The errors of the serving package.

A user's mistake names the value, the limit and the remedy. Errors of other libraries are translated into these where
the library is called, with `raise … from`.

    ServingError
    ├── InvalidRequestError          the caller must change the request
    │   ├── ContextLengthError       prompt over the model's context
    │   ├── UnknownAdapterError
    │   └── GrammarError             the constraint cannot be a grammar, or is over a limit
    ├── EngineBusyError              the queue is full; try again later
    ├── EngineDeadError              the engine has failed, was closed, or hangs; restart it
    ├── EngineNotAvailableError      unknown engine, or one that is not installed
    ├── SettingError                 a setting that the chosen engine would ignore or does not have
    ├── AdapterError                 a listed adapter cannot be used; the operator must change it or the list
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
    """The constraint cannot be a grammar, or is over a limit; says where in a JSON schema."""


class EngineBusyError(ServingError):
    """The bounded queue in front of the engine is full."""


class EngineDeadError(ServingError):
    """The engine has failed, was closed, or does not answer."""


class EngineNotAvailableError(ServingError):
    """The engine does not exist or is not installed; the message says what to install."""


class SettingError(ServingError):
    """The chosen engine would ignore a setting or has no such value; the message says what to change."""


class AdapterError(ServingError):
    """The list of adapters is wrong, or one of them cannot be loaded; the message says what to change."""


class WeightsError(ServingError):
    """The weights on disk do not match the lock, or cannot be read."""
