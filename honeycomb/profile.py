"""What a model was trained on: how it is asked and in which form it answers.

Owns: the names of the choices and `profile.json`, which lies beside the weights. Knows nothing
of weights.

    profile = Profile.load(Path("weights/honeycomb-nlq/profile.json"))
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from honeycomb.errors import HoneycombError

PromptTemplate = Literal["question-first", "columns-first"]
Surface = Literal["json", "python-repr"]


class ProfileError(HoneycombError):
    """profile.json is missing or wrong."""


class Profile(BaseModel):
    """One model's habits.

    `prompt` is the template of `honeycomb.prompt`; `surface` is what the model writes: JSON, or a
    Python dict in double quotes as the running example's model does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=100)
    prompt: PromptTemplate
    surface: Surface

    @classmethod
    def load(cls, path: Path) -> Profile:
        """Read a profile.

        Raises:
            ProfileError: no such file, or it holds something else.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ProfileError(f"{path}: cannot read the model's profile: {error.strerror}") from error
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
            raise ProfileError(
                f'{path}: not a profile such as {{"name": "my-model", "prompt": "columns-first", '
                f'"surface": "json"}}: {wrong}'
            ) from error
