"""What the playground knows of a kind of model beyond its schema: examples, and which inputs come first."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from gateway.errors import GatewayError

_BUILT_IN: Final = Path(__file__).parent / "profiles"


class ProfileError(GatewayError):
    """The operator's file cannot be read."""

    status = 500
    title = "The playground's file is wrong"


class Example(BaseModel):
    """Inputs that a click fills in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str = Field(min_length=1)
    input: dict[str, JsonValue]


class Profile(BaseModel):
    """How the playground shows models that have certain inputs.

    Args:
        requires: inputs that a model must have for this profile.
        first: inputs that are always shown; the others are under "More settings". Empty: what the schema requires.
        widgets: the widgets of inputs whose schema says only that they are text.
        examples: inputs to fill in; the first one is filled in when the page opens.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    requires: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    widgets: Mapping[str, Literal["names", "text", "long"]] = {}
    examples: tuple[Example, ...] = ()


def profile_for(inputs: Mapping[str, object], own: Path | None) -> Profile:
    """The operator's profile, else the built-in one for these inputs, else an empty one.

    Raises:
        ProfileError: the operator's file is missing or wrong.
    """
    if own is not None:
        return _read(own)
    fitting = (profile for profile in _built_in() if set(profile.requires) <= set(inputs))
    return next(fitting, Profile())


@cache
def _built_in() -> tuple[Profile, ...]:
    return tuple(_read(path) for path in sorted(_BUILT_IN.glob("*.json")))


def _read(path: Path) -> Profile:
    try:
        return Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ProfileError(f"GATEWAY_PLAYGROUND: {path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'file'}: {one['msg']}" for one in error.errors())
        raise ProfileError(f"GATEWAY_PLAYGROUND: {path}: {wrong}") from error
