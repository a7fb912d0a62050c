"""The options of a chat model: its chat template, default inputs and JSON separators."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tasks.json_answer import ITEM_SEPARATOR, KEY_SEPARATOR, ItemSeparator, KeySeparator
from tasks.task import TaskFile


class Defaults(BaseModel):
    """Defaults of inputs; `tasks.chat.inputs` describes each of them.

    Args:
        stop_sequences: the caller's list replaces this one.
        chat_template_kwargs: the caller's variables are added to these.
        system_prompt: not used if the caller's messages have a system message.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    system_prompt: str | None = None
    max_tokens: int = Field(default=512, ge=1)
    min_tokens: int = Field(default=0, ge=0)
    temperature: float = Field(default=0.6, ge=0)
    top_p: float = Field(default=0.9, gt=0, le=1)
    top_k: int = Field(default=50, ge=0)
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, gt=0)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    stop_sequences: tuple[str, ...] = ()
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)


class ChatOptions(TaskFile):
    """task.json of a chat model.

    Args:
        chat_template: None uses the checkpoint's own; a text names a template file beside task.json; False uses none,
            for a model that was trained to continue plain text.
        defaults: the defaults of inputs.
        item_separator: in JSON answers, the regular expression of separators between items and between properties.
        key_separator: in JSON answers, the regular expression of separators between a property's name and its value.
    """

    task: Literal["chat"]
    chat_template: Literal[False] | str | None = None
    defaults: Defaults = Defaults()
    item_separator: ItemSeparator = ITEM_SEPARATOR
    key_separator: KeySeparator = KEY_SEPARATOR

    @field_validator("chat_template")
    @classmethod
    def _check_file(cls, value: Literal[False] | str | None) -> Literal[False] | str | None:
        if isinstance(value, str) and PurePath(value).name != value:
            raise ValueError(f"{value!r} is not the name of a file beside task.json; put the template there")
        return value
