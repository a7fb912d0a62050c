"""The schema task: named texts to a JSON value of one schema, configured by task.json without any code.

Words of control tokens become control tokens only where the template has them. In a caller's text they are plain text.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from serving.constraints import JsonSchemaConstraint
from serving.errors import GrammarError, InvalidRequestError
from serving.grammar import check_constraint
from serving.text import Tokenizer
from serving.text.chat_template import ChatTemplate
from serving.text.control_tokens import ControlTokens
from serving.types import SamplingParams
from tasks.bounds import allows_anything, schema_constraint
from tasks.errors import InputError, TaskFileError
from tasks.evaluation.cases import Evaluation
from tasks.json_answer import JsonReader, as_written
from tasks.schema.options import SAMPLING_INPUTS, Conversation, SchemaOptions
from tasks.schema.template import Template
from tasks.task import LIMIT_WORDS, TASK_FILE, Prompt

_PARAMETER: Final = re.compile(r"^        text: str = .*\n", re.MULTILINE)  # in predict.py
_ARGUMENT: Final = re.compile(r"^            text=text,\n", re.MULTILINE)
PromptEncoder = Callable[[Mapping[str, str]], list[int]]  # input name → text, to token ids


def prompt_encoder(options: SchemaOptions, folder: Path, tokenizer: Tokenizer) -> PromptEncoder:
    """The function that encodes prompts for the checkpoint in this folder.

    Raises:
        TaskFileError: the options need a chat template, but there is none or it refuses such a conversation.
        WeightsError: the tokenizer or the chat template cannot be used.
    """
    template = options.prompt_template()
    if options.template is not None:
        return _text_encoder(options.template, template, tokenizer)
    chat_template = ChatTemplate.from_dir(folder, tokenizer)
    if chat_template is None:
        raise TaskFileError(
            "chat: the checkpoint has no chat template; give template, or put chat_template.jinja beside task.json"
        )
    encode = _conversation_encoder(options.chat or Conversation(), template, chat_template)
    try:
        encode(dict.fromkeys(options.inputs, "Hello"))
    except InvalidRequestError as error:
        raise TaskFileError(f"chat: {error}") from error
    return encode


def _text_encoder(source: str, template: Template, tokenizer: Tokenizer) -> PromptEncoder:
    controls = ControlTokens(tokenizer, source)
    words = [word for word in sorted(controls.words, key=len, reverse=True) if word in source]
    if not words:
        return lambda texts: tokenizer.encode(template.fill(texts))
    control = re.compile(f"({'|'.join(map(re.escape, words))})")
    bos = list(tokenizer.bos_token_ids)

    def encode(texts: Mapping[str, str]) -> list[int]:
        ids = controls.encode_segments(
            (part, is_own and part in words)
            for text, is_own in template.pieces(texts)
            for part in (control.split(text) if is_own else [text])
        )
        return ids if ids[: len(bos)] == bos else [*bos, *ids]

    return encode


def _conversation_encoder(chat: Conversation, template: Template, chat_template: ChatTemplate) -> PromptEncoder:
    def encode(texts: Mapping[str, str]) -> list[int]:
        contents = {"system": chat.system, "user": template.fill(texts)}
        messages = [
            {"role": role, "content": text if chat_template.takes_text else [{"type": "text", "text": text}]}
            for role, text in contents.items()
            if text is not None
        ]
        return chat_template.encode(messages, variables=chat.variables)

    return encode


class SchemaTask:
    """See `tasks.task.Task` and `CorrectableTask`.

    Inputs: the text inputs that the options name, `max_tokens`, `temperature` and `seed`.

    Raises:
        TaskFileError: the schema cannot be compiled into a grammar.
    """

    shorten_hint = "give a shorter text"

    def __init__(self, options: SchemaOptions, schema: Any, encode: PromptEncoder) -> None:
        self.options = options
        self.constraint = answer_constraint(schema, options.item_separator, options.key_separator)
        self._encode = encode

    @property
    def long_inputs(self) -> str:
        """See `Task.long_inputs`."""
        *first, last = self.options.required_inputs
        return f"{', '.join(first)} and {last}" if first else last

    def prepare(self, inputs: Mapping[str, Any]) -> Prompt:
        """See `Task.prepare`."""
        texts = self._read_texts(inputs)
        given = {name: inputs[name] for name in SAMPLING_INPUTS if inputs.get(name) is not None}
        sampling = SamplingParams(
            # JSON Schema accepts 1.0 as an integer, and Cog passes it on as a float.
            max_tokens=int(given.get("max_tokens", self.options.max_tokens)),
            temperature=float(given.get("temperature", 0)),
            seed=int(given["seed"]) if "seed" in given else None,
        )
        return Prompt(tuple(self._encode(texts)), sampling, self.constraint, JsonReader(self.constraint))

    def as_written(self, inputs: Mapping[str, Any], answer: str) -> str:
        """See `tasks.task.CorrectableTask`."""
        return as_written(answer, self.constraint)

    def _read_texts(self, inputs: Mapping[str, Any]) -> dict[str, str]:
        """The texts without surrounding white space, and with "\\n" as the only line ending."""
        limit, defaults = self.options.max_input_characters, self.options.defaults
        given = {name: inputs.get(name) or "" for name in self.options.inputs}
        if (length := sum(map(len, given.values()))) > limit:
            raise InputError(self.long_inputs, f"{length:,} characters, the limit is {limit:,}", self.shorten_hint)
        for name, text in given.items():
            for position, character in enumerate(text):
                if unicodedata.category(character) == "Cs":
                    half = f"half a surrogate pair (U+{ord(character):04X}) at character {position + 1}"
                    raise InputError(name, half, "send valid Unicode")
        texts = {name: _clean(text) or _clean(defaults.get(name, "")) for name, text in given.items()}
        if not any(texts[name] for name in self.options.required_inputs):
            raise InputError(self.long_inputs, "is blank", f"give 1 to {limit:,} characters")
        return texts


def _clean(text: str) -> str:
    return "\n".join(text.splitlines()).strip()


def answer_constraint(schema: Any, item_separator: str, key_separator: str) -> JsonSchemaConstraint:
    """The constraint for answers of a schema, which is narrowed by `tasks.bounds`.

    Raises:
        TaskFileError: the schema cannot be compiled into a grammar.
    """
    if allows_anything(schema):
        raise TaskFileError(
            f"schema: {json.dumps(schema)[:200]} allows any value, even an endless number; "
            'give at least {"type": "object"}'
        )
    if not isinstance(schema, dict):
        raise TaskFileError(f"schema: {json.dumps(schema)[:200]} is not a schema; give an object")
    try:
        check_constraint(JsonSchemaConstraint(json.dumps(schema), item_separator, key_separator))
        constraint = schema_constraint(schema, item_separator, key_separator)
        check_constraint(constraint)
    except (GrammarError, RecursionError) as error:
        raise TaskFileError(f"schema: {error}") from error
    return constraint


def create(folder: Path, tokenizer: Tokenizer) -> SchemaTask:
    """The task of a checkpoint.

    Raises:
        TaskFileError: task.json or the schema is wrong, or the chat template refuses the conversation.
        WeightsError: the chat template cannot be used.
    """
    options = SchemaOptions.load(folder)
    try:
        return SchemaTask(options, options.read_schema(folder), prompt_encoder(options, folder, tokenizer))
    except TaskFileError as error:
        raise TaskFileError(f"{folder / TASK_FILE}: {error}") from error


def example_inputs(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """See `tasks.task.TaskModule`."""
    names = [name for name in content.get("inputs", ["text"]) if name not in content.get("defaults", {})]
    return dict.fromkeys(names, "We met Ada Lovelace, 36, in London on 3 May.")


def predict_source(content: Mapping[str, Any]) -> str:
    """See `tasks.task.TaskModule`. The template's only text input becomes those that the task file names."""
    source = Path(__file__).with_name("predict.py").read_text("utf-8")
    names, defaults = content.get("inputs", ["text"]), content.get("defaults", {})

    def named(line: str, name: str) -> str:
        line = re.sub(r"\btext(?=[:=,])", name, line)
        if name in defaults:  # which Cog would misread in the signature, if it has a quote or a line break
            line = line.replace("str =", "str | None =").replace("Input(", "Input(default=None, ")
            line = line.replace("The text that the answer is made from.", "By default the text that task.json has.")
        return line

    for pattern in (_PARAMETER, _ARGUMENT):
        found = pattern.search(source)
        assert found is not None, "the template has exactly one text input"
        source = source.replace(found[0], "".join(named(found[0], name) for name in names))
    limit = content.get("max_tokens", SchemaOptions.model_fields["max_tokens"].default)
    return source.replace(LIMIT_WORDS, f"{LIMIT_WORDS}, by default {limit:,}")


def evaluation(folder: Path) -> Evaluation:
    """See `tasks.task.TaskModule`. Answers are compared field by field."""
    from tasks.evaluation.json_answers import JsonEvaluation  # which serving does not need

    options = SchemaOptions.load(folder)
    schema = options.read_schema(folder)
    names = options.required_inputs
    return JsonEvaluation("schema", names[0] if len(names) == 1 else None, lambda _: schema)
