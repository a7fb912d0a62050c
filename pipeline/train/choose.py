"""Chooses what training needs and the user did not say, writes it to a folder, and says what it chose.

choice = choose(Path("examples.jsonl"), Path("work")); print(*choice.notes, sep="\n")
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipeline.answer_format.errors import ExamplesError
from pipeline.train.example_files import Example, ExampleFiles, Part
from pipeline.train.rewrite_answers import ITEM_SEPARATOR, KEY_SEPARATOR, AnswerWriter
from pipeline.train.split import Likeness, Split, num_alike, split
from pipeline.train.survey import Survey, TaskName, survey
from pipeline.train.template_choice import TEXT, PromptChoice, choose_prompt
from pipeline.train.write_parts import CASES_FILE, Line, Written, write_parts
from pipeline.weights.atomic import write_json, write_text
from serving.grammar.schema_tree import Node, walk
from tasks.chat.inputs import ChatInputs
from tasks.errors import TaskFileError
from tasks.json_text import parse_json, write_answer
from tasks.property_order import reordered
from tasks.schema.options import SchemaOptions
from tasks.schema.task import answer_constraint
from tasks.task import TASK_FILE

SCHEMA_FILE: Final = "schema.json"
PROMPT_FILE: Final = "prompt.txt"
_FILES: Final = (*(f"{part}.jsonl" for part in Part), CASES_FILE, SCHEMA_FILE, PROMPT_FILE, TASK_FILE)
_SYSTEM: Final = "system_prompt"  # the input of a chat
_FEW: Final = 200  # examples; with fewer, the user is warned
_MAX_NAMED: Final = 8  # keys or places that a sentence names
_ANSWER_TOKENS: Final = 1024  # the schema task's own limits, which long examples raise
_INPUT_CHARACTERS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for a task, and where it was written.

    Args:
        task: schema or chat.
        folder: with task.json, cases.jsonl and a JSONL file of each part; schema.json for the task schema; prompt.txt
            where there is a prompt.
        schema: of the answers; None for a chat.
        prompt: that inputs are put into; None where a chat takes them as they are.
        counts: the number of examples of each part.
        notes: sentences about all that was chosen.
    """

    task: TaskName
    folder: Path
    schema: Node | None
    prompt: PromptChoice | None
    counts: dict[Part, int]
    notes: tuple[str, ...]

    @property
    def task_file(self) -> Path:
        """The task file, for --task of scripts/train_adapter and --task-file of scripts/prepare."""
        return self.folder / TASK_FILE

    @property
    def cases(self) -> Path:
        """For --cases of scripts/prepare: validation examples, then training examples if those are few."""
        return self.folder / CASES_FILE


def choose(examples: Path, folder: Path, *, schema: Path | None = None, task: TaskName | None = None) -> Choice:
    """Choose the task, the schema, the prompt and the split of examples, and write them.

    Args:
        examples: a file or a folder, as `ExampleFiles` reads them.
        folder: for what is written; files of the same names are replaced.
        schema: a file with the answers' JSON Schema; None infers it.
        task: None chooses it by the outputs.

    Raises:
        ExamplesError: examples cannot be used, or do not suit the task or the schema.
        TaskFileError: the schema cannot be compiled into a grammar.
    """
    if schema is not None and task == "chat":
        raise ExamplesError("a schema is for the task schema, and the task is chat; give one of them")
    files = ExampleFiles(examples)
    if taken := {path.resolve() for path in files.paths} & {(folder / name).resolve() for name in _FILES}:
        raise ExamplesError(f"{taken.pop()} would be overwritten; give another folder")
    found = survey(files)
    name, why = found.task("schema" if schema is not None else task)
    parts = split(found.keys, found.given, files.parts)
    notes = [f"{examples.name} has {len(found.given):,} examples.", *_warnings(found), why]
    node: Node | None = None
    prompt: PromptChoice | None
    if name == "schema":
        node, more = _given_schema(schema) if schema is not None else _inferred_schema(files, found)
        prompt = asked = choose_prompt({**found.fixed, **found.fields})
        notes += [*more, *_prompt_notes(asked)]
        defaults = _defaults(found, asked.names)
        written = write_parts(files, parts, folder, _schema_lines(AnswerWriter(node), asked, defaults))
        content = _schema_task(found, asked, folder.resolve().name)
    else:
        prompt = _chat_prompt(found)
        notes += _chat_notes(prompt)
        # Where fields are put into one message, they have no defaults.
        defaults = _defaults(found, {_SYSTEM: _SYSTEM, "prompt": "prompt"}) if prompt is None else {}
        written = write_parts(files, parts, folder, _chat_lines(prompt, defaults))
        content = {"task": "chat", "name": folder.resolve().name[:100]}
    if defaults:
        content["defaults"] = defaults
        notes += [f"Requests may leave out {name}, which is the same in all examples." for name in defaults]
    _write(folder / SCHEMA_FILE, None if node is None else json.dumps(node, indent=2, ensure_ascii=False) + "\n")
    _write(folder / PROMPT_FILE, None if prompt is None else prompt.template)
    write_json(folder / TASK_FILE, content)
    notes += [*_written_notes(written), *_split_notes(parts, files, written)]
    return Choice(name, folder, node, prompt, written.counts, tuple(notes))


def _write(path: Path, text: str | None) -> None:
    """Write a file that the task has, or remove the one of an earlier choice."""
    if text is None:
        path.unlink(missing_ok=True)
    else:
        write_text(path, text)


def _inferred_schema(files: ExampleFiles, found: Survey) -> tuple[Node, list[str]]:
    """The schema of all outputs, and sentences about it.

    Raises:
        TaskFileError: it cannot be compiled into a grammar.
    """
    node, notes = found.shape.schema(), list[str]()
    try:
        answer_constraint(node, ITEM_SEPARATOR, KEY_SEPARATOR)
    except TaskFileError:
        node = found.shape.schema(bounded=False)
        notes.append("The schema limits no lengths, because with limits it is too large for a grammar.")
    node, _ = reordered(node, (example.value for example in files))
    return node, [*describe(node), *notes]


def describe(schema: Node) -> Iterator[str]:
    """Sentences about an inferred schema."""
    places = {_place(path): node for path, node in walk(schema)}
    for place, node in itertools.islice(((p, n) for p, n in places.items() if n.get("properties")), _MAX_NAMED):
        keys = list(node["properties"])
        count = "one key" if len(keys) == 1 else f"{len(keys)} keys"
        optional = [key for key in keys if key not in node.get("required", ())]
        lacking = "any of them" if len(optional) == len(keys) > 1 else _named(optional)
        missing = f"; it may lack {lacking}" if optional else ""
        yield f"{place or 'An answer'} has {count}: {_named(keys)}{missing}."
    if enums := [f"{place} ({len(node['enum'])})" for place, node in places.items() if "enum" in node]:
        yield f"These have one of the examples' values, which are few and repeat: {_named(enums)}."
    if nulls := [place for place, node in places.items() if node.get("type") == "null"]:
        yield f"These are null in all examples, so the schema allows nothing else: {_named(nulls)}."
    if empty := [place for place, node in places.items() if node.get("maxItems") == 0]:
        yield f"These are empty in all examples, so the schema allows nothing else: {_named(empty)}."
    if is_open := [place or "the answer" for place, node in places.items() if node.get("additionalProperties")]:
        yield f"These take any keys, because the examples' keys hardly repeat: {_named(is_open)}."


def _given_schema(path: Path) -> tuple[Node, list[str]]:
    try:
        node = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ExamplesError(f"{path} cannot be read as a JSON Schema: {error}") from error
    answer_constraint(node, ITEM_SEPARATOR, KEY_SEPARATOR)
    return node, [f"The schema is {path.name}, as you chose, and its order of keys that of the answers."]


def _schema_task(found: Survey, prompt: PromptChoice, name: str) -> dict[str, Any]:
    """The content of task.json."""
    content: dict[str, Any] = {
        "task": "schema",
        "name": name[:100],
        "schema_file": SCHEMA_FILE,
        "template": prompt.template,
        "inputs": list(prompt.inputs),
        "item_separator": ITEM_SEPARATOR,
        "key_separator": KEY_SEPARATOR,
    }
    if (tokens := found.longest_output // 2) > _ANSWER_TOKENS:  # a token has two bytes or more, on average
        content["max_tokens"] = tokens
    if 2 * found.longest_input > _INPUT_CHARACTERS:
        content["max_input_characters"] = 2 * found.longest_input
    SchemaOptions.model_validate_json(json.dumps(content))
    return content


def _defaults(found: Survey, names: Mapping[str, str]) -> dict[str, str]:
    """Instructions that are the same in all examples, by their inputs, unless there is no other input.

    Args:
        names: the inputs of the fields.
    """
    texts = {names[field]: text for field, text in found.fixed.items() if field in names}
    return texts if len(texts) < len(names) else {}


def _chat_prompt(found: Survey) -> PromptChoice | None:
    """The template that makes one text of an input's fields; None where inputs are texts or predict's own inputs."""
    fields = found.fields.keys()
    if not fields or (fields <= ChatInputs.model_fields.keys() and fields & {"prompt", "messages"}):
        return None
    return choose_prompt({**found.fixed, **found.fields}, ending="")


def _schema_lines(writer: AnswerWriter, prompt: PromptChoice, defaults: Mapping[str, str]) -> Callable[[Example], Line]:
    """Lines leave out inputs that have a default, as requests do: so the same question is the same line."""

    def line_of(example: Example) -> Line:
        texts = {name: text for name, text in prompt.texts(example.input).items() if name not in defaults}
        output = writer.write(example.value)
        was_reordered = output != write_answer(example.value)
        return Line(texts if prompt.names else texts[TEXT], output, was_reordered, writer.fault(output))

    return line_of


def _chat_lines(prompt: PromptChoice | None, defaults: Mapping[str, str]) -> Callable[[Example], Line]:
    def line_of(example: Example) -> Line:
        inputs = example.input if prompt is None else prompt.prompt(example.input)
        if isinstance(inputs, dict):
            inputs = {name: value for name, value in inputs.items() if name not in defaults}
        return Line(inputs, json.dumps(example.output_text, ensure_ascii=False))

    return line_of


def _warnings(found: Survey) -> Iterator[str]:
    if len(found.given) < _FEW:
        yield f"That is few: expect a model that is often wrong, and rough measurements; {_FEW} or more are better."
    if found.unused:
        yield f"Fields of the lines that are not used: {_named(found.unused)}."


def _prompt_notes(prompt: PromptChoice) -> Iterator[str]:
    if prompt.names:
        renamed = [f"{field} is called {name}" for field, name in prompt.names.items() if field != name]
        also = f"; {_named(renamed)}" if renamed else ""
        yield f"The prompt names each field of an input ({_named(prompt.inputs)}{also})."
    else:
        yield "The prompt is the input between two headings."


def _chat_notes(prompt: PromptChoice | None) -> Iterator[str]:
    if prompt is None:
        yield "Each input is put into the model's own chat template, as the user's message or as its messages."
    else:
        yield "The fields of an input are put into one message; ask the model in the same way."


def _written_notes(written: Written) -> Iterator[str]:
    if written.reordered:
        yield f"Answers with keys in another order, which were rewritten in the schema's: {written.reordered:,}."
    if written.left_out:
        shown = "\n".join(written.faults)
        yield f"Answers that the schema does not allow, which were left out: {written.left_out:,}\n{shown}"


def _split_notes(parts: Split, files: ExampleFiles, written: Written) -> Iterator[str]:
    sizes = ", ".join(f"{written.counts[part]:,} for {part}" for part in Part)
    own = f" ({' and '.join(part for part in Part if part in files.parts)} as given)" if files.parts else ""
    yield f"The split is {sizes}{own}."
    if count := num_alike(parts.order):
        yield f"Inputs that repeat another one ({parts.likeness.value}), which are in one part with it: {count:,}."
    if parts.likeness is not Likeness.DIGITS_ASIDE:
        yield "Inputs that differ in their digits only are in different parts, because too many do."
    if count := parts.count(None):
        yield f"Examples that were left out, because an input of the test or validation is like theirs: {count:,}."


def _named(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - _MAX_NAMED} more" if len(listed) > _MAX_NAMED else ""
    return ", ".join(listed[:_MAX_NAMED]) + more


def _place(pointer: str) -> str:
    """A place in a schema as in results of evaluations: `lines[].sku`."""
    steps, place = iter(pointer.split("/")[1:]), ""
    for step in steps:
        if step == "properties":
            name = next(steps).replace("~1", "/").replace("~0", "~")
            place = f"{place}.{name}" if place else name
        else:
            place += "[]" if step == "items" else ".*"
    return place
