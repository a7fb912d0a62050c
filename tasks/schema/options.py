"""The options of a schema task: its schema, prompt and JSON separators."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from serving.grammar.grammar_limits import MAX_SCHEMA
from tasks.errors import TaskFileError
from tasks.json_answer import ITEM_SEPARATOR, KEY_SEPARATOR, ItemSeparator, KeySeparator
from tasks.json_text import parse_json
from tasks.schema.template import Template, TemplateError
from tasks.task import TaskFile

MAX_SCHEMA_BYTES: Final = 4 * MAX_SCHEMA  # a character has at most four bytes; more is not read at all
SAMPLING_INPUTS: Final = ("max_tokens", "temperature", "seed")
RESERVED_INPUTS: Final = (*SAMPLING_INPUTS, "adapter")


class Conversation(BaseModel):
    """A prompt in the form of a conversation: a user's message, and perhaps a system message before it.

    Args:
        system: the system message; None leaves it to the chat template.
        user: template of the user's message.
        variables: more variables for the chat template, such as `enable_thinking`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    system: str | None = None
    user: str = "{text}"
    variables: dict[str, Any] = Field(default_factory=dict)


class SchemaOptions(TaskFile):
    """task.json of a model that writes JSON.

    Args:
        json_schema: the answers' JSON Schema, an object or True; `schema` in the file.
        schema_file: instead of `schema`, the name of a file beside task.json that has it.
        template: the prompt: text with `{name}` or `{name:json}` for each input.
        chat: instead of `template`, a conversation for the checkpoint's chat template; the default of the two.
        inputs: names of the text inputs.
        defaults: texts of inputs that a caller may leave out, such as an instruction that seldom changes.
        item_separator: regular expression of separators between items and between properties.
        key_separator: regular expression of separators between a property's name and its value.
        max_tokens: the limit of an answer, unless the caller sets it.
        max_input_characters: the limit of all inputs together.
    """

    task: Literal["schema"]
    json_schema: Any = Field(default=None, alias="schema")
    schema_file: str | None = None
    template: str | None = None
    chat: Conversation | None = None
    inputs: tuple[str, ...] = Field(default=("text",), min_length=1)
    defaults: dict[str, str] = Field(default={})
    item_separator: ItemSeparator = ITEM_SEPARATOR
    key_separator: KeySeparator = KEY_SEPARATOR
    max_tokens: int = Field(default=1024, ge=1)
    max_input_characters: int = Field(default=100_000, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.json_schema is None) == (self.schema_file is None):
            raise ValueError("give either schema, or schema_file with the name of a file beside this one")
        if self.template is not None and self.chat is not None:
            raise ValueError("give either template, or chat for the checkpoint's chat template")
        if wrong := [name for name in self.inputs if not name.isidentifier() or name in RESERVED_INPUTS]:
            raise ValueError(
                f"inputs: {wrong[0]!r} cannot name an input; use a word that is not one of {RESERVED_INPUTS}"
            )
        if len(set(self.inputs)) < len(self.inputs):
            raise ValueError(f"inputs: a name occurs twice in {', '.join(self.inputs)}")
        if unknown := [name for name in self.defaults if name not in self.inputs]:
            raise ValueError(f"defaults: there is no input {unknown[0]}; inputs has {', '.join(self.inputs)}")
        if not self.required_inputs:
            raise ValueError("defaults: give none to one of the inputs, which callers must send")
        try:
            self.prompt_template()
        except TemplateError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def required_inputs(self) -> tuple[str, ...]:
        """The names of inputs that a caller must send."""
        return tuple(name for name in self.inputs if name not in self.defaults)

    def prompt_template(self) -> Template:
        """The template that the inputs are inserted into: the prompt, or the user's message.

        Raises:
            TemplateError: the template does not use an input.
        """
        return Template(self.template if self.template is not None else (self.chat or Conversation()).user, self.inputs)

    def read_schema(self, folder: Path) -> Any:
        """The schema, from the options or from its file in this folder.

        Raises:
            TaskFileError: the file cannot be read, is not JSON, or is not in the folder.
        """
        if self.schema_file is None:
            return self.json_schema
        path = folder / self.schema_file
        if Path(self.schema_file).name != self.schema_file or not path.is_file():
            raise TaskFileError(f"schema_file {self.schema_file!r} is not a file in {folder}; put it beside task.json")
        if (size := path.stat().st_size) > MAX_SCHEMA_BYTES:
            raise TaskFileError(f"{path} has {size:,} bytes; the limit is {MAX_SCHEMA_BYTES:,}")
        try:
            return parse_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise TaskFileError(f"{path} is not JSON: {error}") from error

    @classmethod
    def example(cls) -> str:
        """A valid file, as JSON text."""
        return (
            '{"task": "schema", "name": "invoice", "schema": {"type": "object", "properties": {"total": '
            '{"type": "number"}}, "required": ["total"]}, "template": "### Email:\\n{text}\\n\\n### Invoice:\\n"}'
        )
