"""A model with tools writes a text, calls in its template's own format, or both, and nothing else."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.constraints import CallsConstraint
from serving.errors import GrammarError
from serving.grammar.compiler import GrammarCompiler
from serving.types import FinishReason
from tasks.chat.options import ChatOptions
from tasks.chat.task import ChatTask
from tasks.chat.tool_calls import CallsReader, calls_constraint, read_tools
from tasks.errors import InputError, OutputError
from tests.serving.text.chat_families import FAMILIES, Family

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]
PARIS, OSLO = '{"city": "Paris {\\"}"}', '{"city": "Oslo"}'
ONE = '<tool_call>{"name": "weather", "arguments": ' + PARIS + "}\n"
TWO = ONE + '<tool_call>{"name": "now", "arguments": {}}\n'
HERMES = {
    "one": '<tool_call>\n{"name": "weather", "arguments": ' + PARIS + "}\n</tool_call>",
    "two": '<tool_call>\n{"name": "weather", "arguments": '
    + PARIS
    + '}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
}
# How each model writes one call, and two.
WRITTEN = {
    "qwen2.5": HERMES,
    "smollm2": HERMES,  # knows no tools
    "mistral-v0.3": {
        "one": '[TOOL_CALLS] [{"name": "weather", "arguments": ' + PARIS + "}]",
        "two": '[TOOL_CALLS] [{"name": "weather", "arguments": ' + PARIS + '}, {"name": "now", "arguments": {}}]',
    },
    "llama3.1": {"one": '{"name": "weather", "parameters": ' + PARIS + "}"},
}


def constraint_of(name: str, *, is_single: bool = False) -> CallsConstraint:
    return calls_constraint(TOOLS, FAMILIES[name].template.call_format, is_single=is_single)


def tokens_of(family: Family, text: str) -> list[int]:
    """The tokens of an answer, its control words as such."""
    words = {word: token_id for word, token_id, _ in family.template.call_format.tokens}
    found: list[int] = []
    rest = text
    while rest:
        at, word = min(((rest.find(word), word) for word in words if word in rest), default=(len(rest), ""))
        found += family.tokenizer.encode(rest[:at], add_bos=False) if at else []
        found += [words[word]] if word else []
        rest = rest[at + len(word) :]
    return found


def is_allowed(name: str, text: str, *, is_single: bool = False) -> bool:
    """Whether the grammar lets a model write the whole text and end there."""
    family = FAMILIES[name]
    compiler = GrammarCompiler(family.tokenizer, vocab_size=family.tokenizer.vocab_size)
    state = compiler.compile(constraint_of(name, is_single=is_single))
    tokens = tokens_of(family, text)
    return state.accept(tokens) == len(tokens) and state.may_end


@pytest.mark.parametrize("name", WRITTEN)
def test_the_grammar_allows_texts_and_calls(name: str) -> None:
    family, written = FAMILIES[name], WRITTEN[name]
    assert is_allowed(name, "")
    assert is_allowed(name, "Hello {there}\n[a]")
    for text in written.values():
        assert is_allowed(name, text)
        assert not is_allowed(name, text[:-1])
        assert not is_allowed(name, text + " and"), "nothing comes after calls"
        assert not is_allowed(name, text.replace("weather", "whether")), "names are those of tools"
        assert not is_allowed(name, text.replace('"city"', '"town"')), "arguments fit the tool's schema"
    assert is_allowed(name, f"Let me see.\n{written['one']}") == bool(family.template.call_format.marker) or (
        name == "llama3.1"  # there it is a text
    )
    if "two" in written:
        assert not is_allowed(name, written["two"], is_single=True)
    assert is_allowed(name, written["one"], is_single=True)


def test_what_looks_as_a_call_is_no_text() -> None:
    assert not is_allowed("qwen2.5", 'See <tool_call>{"name": "weather"}')
    assert not is_allowed("mistral-v0.3", 'See <tool_call>{"name": "weather"}')
    assert not is_allowed("llama3.1", '{"name": "weather"}')
    assert is_allowed("llama3.1", '{"city": "Paris"}')


ANSWER = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
JSON = '{"name": "<tool_call>"}'


def formatted(name: str, schema: dict[str, Any]) -> tuple[str, CallsConstraint]:
    """The prompt of a family's model, and what its answer must match, with tools and a schema."""
    family = FAMILIES[name]
    task = ChatTask(ChatOptions(task="chat", name="a"), family.tokenizer, family.template)
    prompt = task.prepare({"prompt": "Weather?", "tools": TOOLS, "json_schema": schema})
    assert isinstance(prompt.constraint, CallsConstraint)
    return family.tokenizer.decode(prompt.token_ids), prompt.constraint


@pytest.mark.parametrize(("schema", "answer"), [(ANSWER, JSON), ({"type": "array"}, '[{"name": "now"}]')])
@pytest.mark.parametrize("name", WRITTEN)
def test_with_a_schema_an_answer_is_json_of_it_or_calls(name: str, schema: dict[str, Any], answer: str) -> None:
    """Where JSON of the schema may begin as a call of the template, calls are in the default format."""
    prompt, constraint = formatted(name, schema)
    is_default = name == "llama3.1" or (name == "mistral-v0.3" and schema is not ANSWER)
    assert ("<tools>" in prompt) == (is_default or name in ("qwen2.5", "smollm2"))
    call = HERMES["one"] if is_default else WRITTEN[name]["one"]
    family = FAMILIES[name]
    compiler = GrammarCompiler(family.tokenizer, vocab_size=family.tokenizer.vocab_size)
    for text, allowed in (
        (answer, True),
        (call, True),
        ("Hello", False),
        (answer + call, False),
        ("Hello" + call, False),
        (answer[:-1], False),
        (call.replace("weather", "whether"), False),
        (call.replace('"city"', '"town"'), False),
    ):
        state = compiler.compile(constraint)
        # What looks as a call is no control word in a string. SentencePiece puts a blank before a text's beginning.
        parts = ("A" + text).partition("tool") if text == JSON else ("A" + text,)
        tokens = [token for part in parts for token in tokens_of(family, part)][len(tokens_of(family, "A")) :]
        assert (state.accept(tokens) == len(tokens) and state.may_end) == allowed, text
    for text, shown in ((answer, answer), (given_by_engine(name, call), ONE)):
        reader = CallsReader(constraint)
        assert "".join(map(reader.push, text)) + reader.finish(FinishReason.STOP) == shown
    reader = CallsReader(constraint)
    with pytest.raises(OutputError, match="the JSON is not complete after"):
        reader.push(answer[:-1])
        reader.finish(FinishReason.LENGTH)


def test_json_beside_tools_is_checked_with_its_schema() -> None:
    prime = {"type": "object", "properties": {"a": {"type": "integer", "not": {"multipleOf": 7}}}, "required": ["a"]}
    reader = CallsReader(formatted("qwen2.5", prime)[1])
    assert reader.push('{"a": 14}') == '{"a": 14}'
    with pytest.raises(OutputError, match=r"does not meet #/properties/a/not of the schema"):
        reader.finish(FinishReason.STOP)


@pytest.mark.parametrize("name", WRITTEN)
def test_all_but_the_choices_is_forced(name: str) -> None:
    family = FAMILIES[name]
    compiler = GrammarCompiler(family.tokenizer, vocab_size=family.tokenizer.vocab_size)
    state = compiler.compile(constraint_of(name))
    begin = tokens_of(family, WRITTEN[name]["one"].partition("eather")[0] + "e")
    assert state.accept(begin) == len(begin)
    forced = family.tokenizer.decode(state.forced_tokens())
    assert forced.startswith("ather")
    assert '{"city":' in forced


def given_by_engine(name: str, text: str) -> str:
    """The text without the tokens that engines do not show."""
    for word, _, shown in FAMILIES[name].template.call_format.tokens:
        text = text.replace(word, shown)
    return text


def read(name: str, text: str, reason: FinishReason = FinishReason.STOP, cuts: tuple[int, ...] = ()) -> list[str]:
    """What is shown of an answer that comes in pieces."""
    reader = CallsReader(constraint_of(name))
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [reader.push(text[start:end]) for start, end in pairwise(places)]
    return [*pieces, reader.finish(reason)]


@pytest.mark.parametrize("name", WRITTEN)
@given(
    cuts=st.lists(st.integers(1, 200)).map(tuple), before=st.sampled_from(["", "A", "Let me <see>.\n\n", "[{ \n<tool_"])
)
def test_however_the_text_comes_calls_are_lines_behind_it(name: str, cuts: tuple[int, ...], before: str) -> None:
    written = {count: given_by_engine(name, text) for count, text in WRITTEN[name].items()}
    if name == "llama3.1":
        before = ""
    assert "".join(read(name, before + written["one"], cuts=cuts)) == before.rstrip() + ONE
    if "two" in written:
        assert "".join(read(name, before + written["two"], cuts=cuts)) == before.rstrip() + TWO
    text = before + ' {"name" [TOOL_CALLS " <tool_cal \n'
    assert "".join(read(name, text, cuts=cuts)) == text


PLAIN = {
    '{"name": "weather", "arguments": ' + PARIS + "}": ONE,
    '```json\n{\n  "name": "weather",\n  "arguments": {\n    "city": ' + PARIS[9:-1] + "\n  }\n}\n```": ONE,
    '{"name": "weather", "parameters": ' + PARIS + '}\n{"name": "now", "arguments": {}}': TWO,
    '```\n[\n  {"name": "weather", "arguments": ' + PARIS + '},\n  {"name": "now", "arguments": {}}\n]\n```': TWO,
}


@pytest.mark.parametrize("text", PLAIN)
def test_a_model_that_writes_calls_as_plain_json_calls_too(text: str) -> None:
    """Qwen2.5-Coder does, whose template has marked calls."""
    assert is_allowed("qwen2.5", text)
    assert is_allowed("smollm2", f"Let me see:\n\n{text}")
    assert is_allowed("qwen2.5", text, is_single=True) == (PLAIN[text] == ONE)
    assert not is_allowed("qwen2.5", text + " and"), "nothing comes after calls"
    assert not is_allowed("qwen2.5", text.replace('"city"', '"town"')), "arguments fit the tool's schema"


def test_a_hundred_tools_are_not_refused_for_plain_calls() -> None:
    family, schema = FAMILIES["qwen2.5"], {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools = [{"function": {"name": f"f{number}", "parameters": schema}} for number in range(100)]
    constraint = calls_constraint(read_tools(tools), family.template.call_format, is_single=False)
    state = GrammarCompiler(family.tokenizer, vocab_size=family.tokenizer.vocab_size).compile(constraint)
    tokens = tokens_of(family, '{"name": "f7", "arguments": {"a": 1}}')
    assert state.accept(tokens) == len(tokens) and state.may_end


def test_other_json_is_a_text() -> None:
    for text in ('{"name": "Ada", "age": 36}', '```json\n{"name": "whether", "arguments": {"a": 1}}\n``` is wrong'):
        assert is_allowed("qwen2.5", text)
        assert "".join(read("qwen2.5", text, cuts=tuple(range(len(text))))) == text


@pytest.mark.parametrize("text", PLAIN)
@given(cuts=st.lists(st.integers(1, 200)).map(tuple), before=st.sampled_from(["", "So:\n\n", '{"name": "Ada"} ```\n']))
def test_however_plain_json_comes_calls_are_lines_behind_the_text(
    text: str, cuts: tuple[int, ...], before: str
) -> None:
    shown = before.removesuffix("```\n").rstrip()
    if not (before.endswith("```\n") and text.startswith("```")):
        assert "".join(read("qwen2.5", before + text, cuts=cuts)) == shown + PLAIN[text]


@pytest.mark.parametrize("text", PLAIN)
def test_plain_json_that_is_cut_has_no_other_beginning(text: str) -> None:
    for end in range(len(text)):
        assert PLAIN[text].startswith("".join(read("qwen2.5", text[:end], FinishReason.LENGTH)))


def test_text_and_arguments_are_shown_as_they_come() -> None:
    text = "Let me see.\n" + HERMES["one"]
    pieces = read("qwen2.5", text, cuts=tuple(range(len(text))))
    assert pieces[:9] == ["", *"Let", "", " m", "e", "", " s"]
    assert "P" in pieces, "a character of an argument"


@pytest.mark.parametrize("name", WRITTEN)
def test_an_answer_that_is_cut_has_no_other_beginning(name: str) -> None:
    before = "" if name == "llama3.1" else "So: "
    text = before + given_by_engine(name, WRITTEN[name]["one"])
    for end in range(len(text)):
        shown = "".join(read(name, text[:end], FinishReason.LENGTH))
        assert (before.rstrip() + ONE).startswith(shown) or shown.strip() == before.strip()


def test_a_call_that_a_stop_sequence_ends_is_an_error() -> None:
    with pytest.raises(OutputError, match="the call was ended before it was complete, after 'weather'"):
        read("qwen2.5", HERMES["one"][:60])


def test_arguments_that_the_grammar_cannot_keep_are_checked() -> None:
    open_object = {"type": "object", "additionalProperties": {"type": "integer"}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": open_object}}]
    reader = CallsReader(calls_constraint(read_tools(tools), FAMILIES["qwen2.5"].template.call_format, is_single=False))
    with pytest.raises(OutputError, match=r"the arguments of 'f': .*'a' twice"):
        reader.push('<tool_call>\n{"name": "f", "arguments": {"a": 1, "a": 2}')


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ([{}], r"tools\[0\]: is not a function with a name"),
        ([*TOOLS, {"type": "function", "function": {"name": ""}}], r"tools\[2\]: is not a function"),
        ([TOOLS[0], TOOLS[0]], '"weather" is the name of two functions'),
        ([{"function": {"name": "f", "parameters": {"type": "string"}}}], r"tools\[0\]\.function\.parameters: is no"),
    ],
)
def test_wrong_tools_are_named(tools: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        calls_constraint(read_tools(tools), FAMILIES["qwen2.5"].template.call_format, is_single=False)


def test_a_schema_that_is_refused_has_its_tool_s_name() -> None:
    family = FAMILIES["qwen2.5"]
    tools = [{"function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "text"}}}}}]
    constraint = calls_constraint(read_tools(tools), family.template.call_format, is_single=False)
    with pytest.raises(GrammarError, match="the tool 'f': the JSON schema"):
        GrammarCompiler(family.tokenizer, vocab_size=family.tokenizer.vocab_size).compile(constraint)


@pytest.mark.parametrize("name", ["qwen2.5", "smollm2", "llama3", "mistral-v0.3", "llama3.1"])
def test_the_turn_after_a_call_is_in_every_template(name: str) -> None:
    family = FAMILIES[name]
    task = ChatTask(ChatOptions(task="chat", name="a"), family.tokenizer, family.template)
    call = {"id": "call_0f3a00", "type": "function", "function": {"name": "weather", "arguments": OSLO}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_0f3a00", "content": "sunny"},
    ]
    text = family.tokenizer.decode(task.prepare({"messages": messages, "tools": TOOLS}).token_ids)
    for part in ("The weather.", "Weather?", '"Oslo"', "sunny"):
        assert part in text
    assert text.index("Weather?") < text.index('"Oslo"') < text.index("sunny")


def test_what_a_grammar_cannot_say_of_arguments_is_checked() -> None:
    """Such a schema is rewritten, as that of an answer is."""
    schema = {"type": "object", "properties": {"a": {"type": "integer", "not": {"multipleOf": 7}}}, "required": ["a"]}
    family, tools = FAMILIES["qwen2.5"], [{"function": {"name": "f", "parameters": schema}}, TOOLS[0]]
    constraint = calls_constraint(read_tools(tools), family.template.call_format, is_single=False)
    written = '<tool_call>\n{"name": "f", "arguments": {"a": 14}}\n</tool_call>'
    state = GrammarCompiler(family.tokenizer, vocab_size=family.tokenizer.vocab_size).compile(constraint)
    assert state.accept(tokens_of(family, written)) == len(tokens_of(family, written))
    with pytest.raises(OutputError, match=r"the arguments of 'f' do not meet #/properties/a/not"):
        CallsReader(constraint).push(written)
    assert CallsReader(constraint).push(written.replace("14", "15"))
