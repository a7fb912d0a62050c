"""The chat task, for any model that was trained for conversations, with the model's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from serving.constraints import CallsConstraint, JsonSchemaConstraint
from serving.errors import InvalidRequestError
from serving.text import Tokenizer
from serving.text.chat_template import ChatTemplate
from serving.types import FinishReason
from tasks.bounds import narrowed, schema_constraint
from tasks.chat.inputs import ChatInputs, read_answer_schema
from tasks.chat.messages import conversation, with_content
from tasks.chat.options import ChatOptions, Defaults
from tasks.chat.tool_calls import CallsReader, calls_constraint, described, read_tools, tells_calls_from
from tasks.errors import InputError, OutputError, TaskFileError
from tasks.evaluation.cases import Evaluation
from tasks.json_answer import JsonReader, as_written
from tasks.task import LIMIT_WORDS, TASK_FILE, Prompt, Reader


class TextReader:
    """See `tasks.task.Reader`. A text that was cut off at `max_tokens` is a valid answer."""

    notes: tuple[str, ...] = ()

    def push(self, text: str) -> str:
        """See `Reader.push`; all text is shown immediately."""
        return text

    def finish(self, reason: FinishReason) -> str:
        """See `Reader.finish`."""
        return ""


def _read(inputs: Mapping[str, Any]) -> ChatInputs:
    given = ChatInputs.read(inputs)
    return given.model_copy(update={"tools": read_tools(given.tools)}) if given.tools else given


def _reader(constraint: JsonSchemaConstraint | CallsConstraint | None) -> Reader:
    if isinstance(constraint, CallsConstraint):
        return CallsReader(constraint)
    return TextReader() if constraint is None else JsonReader(constraint)


def _writes_calls(template: ChatTemplate, schema: dict[str, Any] | bool | None) -> bool:
    """Whether calls are written as the template does, from which JSON of the answer's schema must be told."""
    return template.writes_calls and (schema is None or tells_calls_from(schema, template.call_format))


_OF_TEMPLATES: Final = (
    "messages",
    "system_prompt",
    "tools",
    "documents",
    "chat_template_kwargs",
    "add_generation_prompt",
)
_LEFT_OUT: Final[Sequence[Any]] = (None, "", [], {}, True)


class ChatTask:
    """See `tasks.task.Task` and `CorrectableTask`. Inputs are those of `ChatInputs`.

    Without a template the model continues plain text.

    Raises:
        TaskFileError: the options do not fit the template.
    """

    long_inputs = "prompt or messages"
    shorten_hint = "send a shorter conversation"

    def __init__(self, options: ChatOptions, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.options = options
        self._tokenizer = tokenizer
        self._template = template
        self._check_options()

    def prepare(self, inputs: Mapping[str, Any]) -> Prompt:
        """See `Task.prepare`."""
        given = _read(inputs)
        constraint = self._constraint(given)
        return Prompt(
            token_ids=tuple(self._plain(given) if self._template is None else self._encode(self._template, given)),
            sampling=given.sampling(self.options.defaults),
            constraint=constraint,
            reader=_reader(constraint),
        )

    def as_written(self, inputs: Mapping[str, Any], answer: str) -> str:
        """See `tasks.task.CorrectableTask`. Without a JSON Schema any text is an answer."""
        constraint = self._constraint(_read(inputs))
        if isinstance(constraint, CallsConstraint):
            raise OutputError("an answer that may call tools cannot be corrected")
        return answer if constraint is None else as_written(answer, constraint)

    def _constraint(self, given: ChatInputs) -> JsonSchemaConstraint | CallsConstraint | None:
        schema = read_answer_schema(given.json_schema)
        separators = self.options.item_separator, self.options.key_separator
        text = None if schema is None else schema_constraint(schema, *separators)
        if not given.tools or self._template is None:
            return text
        is_own = _writes_calls(self._template, schema)
        call_format = self._template.call_format if is_own else self._template.default_format
        return calls_constraint(given.tools, call_format, is_single=not given.parallel_tool_calls, text=text)

    def _encode(self, template: ChatTemplate, given: ChatInputs) -> list[int]:
        defaults = self.options.defaults
        is_described = bool(given.tools) and not _writes_calls(template, read_answer_schema(given.json_schema))
        messages = conversation(
            given,
            system_prompt=defaults.system_prompt,
            as_parts=template.takes_parts and not is_described,
            as_text=template.takes_text,
        )
        if is_described:
            written = described(messages, given.tools, takes_system=template.takes_system)
            messages = [
                with_content(one, as_parts=template.takes_parts, as_text=template.takes_text) for one in written
            ]
        return template.encode(
            messages,
            tools=() if is_described else given.tools,
            documents=given.documents,
            add_generation_prompt=given.add_generation_prompt,
            variables={**defaults.chat_template_kwargs, **(given.chat_template_kwargs or {})},
        )

    def _plain(self, given: ChatInputs) -> list[int]:
        """Token ids of the prompt as plain text; refuses inputs that need a chat template."""
        for name in _OF_TEMPLATES:
            if getattr(given, name) not in _LEFT_OUT:
                raise InputError(name, "this model has no chat template", "send a prompt, which it continues as text")
        assert given.prompt is not None, "a call has messages or a prompt"
        return self._tokenizer.encode(given.prompt)

    def _check_options(self) -> None:
        """Check the defaults with the template, so that errors appear at setup and not at every call."""
        defaults = self.options.defaults
        if not (defaults.system_prompt or defaults.chat_template_kwargs):
            return
        if self._template is None:
            raise TaskFileError("defaults: system_prompt and chat_template_kwargs need a chat template; remove them")
        try:
            self._encode(self._template, ChatInputs(prompt="Hello"))
        except (InputError, InvalidRequestError) as error:
            raise TaskFileError(f"defaults: {error}") from error


def create(folder: Path, tokenizer: Tokenizer) -> ChatTask:
    """The task of a checkpoint.

    Raises:
        TaskFileError: task.json is wrong.
        WeightsError: the chat template cannot be used.
    """
    options = ChatOptions.load(folder)
    file = options.chat_template or None
    if file is not None and not (folder / file).is_file():
        raise TaskFileError(
            f"{folder / TASK_FILE}: chat_template {file!r} does not exist; put the file beside task.json"
        )
    template = None if options.chat_template is False else ChatTemplate.from_dir(folder, tokenizer, file=file)
    try:
        return ChatTask(options, tokenizer, template)
    except TaskFileError as error:
        raise TaskFileError(f"{folder / TASK_FILE}: {error}. A valid file: {ChatOptions.example()}") from error


def example_inputs(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """See `tasks.task.TaskModule`."""
    return {"prompt": "What is the capital of France?", "temperature": 0}


def predict_source(content: Mapping[str, Any]) -> str:
    """See `tasks.task.TaskModule`. The task file's limit of an answer is named where callers read of it."""
    source = Path(__file__).with_name("predict.py").read_text("utf-8")
    limit = content.get("defaults", {}).get("max_tokens", Defaults().max_tokens)
    return source.replace(LIMIT_WORDS, f"{LIMIT_WORDS}, by default {limit:,}")


def evaluation(folder: Path) -> Evaluation:
    """See `tasks.task.TaskModule`. Answers are compared as JSON where the case has a schema."""
    from tasks.evaluation.json_answers import JsonEvaluation  # which serving does not need

    def schema_of(inputs: Mapping[str, Any]) -> Any:
        schema = read_answer_schema(inputs.get("json_schema"))
        return narrowed(schema) if isinstance(schema, dict) else schema

    return JsonEvaluation("chat", "prompt", schema_of)
