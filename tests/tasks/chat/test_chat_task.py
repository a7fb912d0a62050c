"""A chat model's prompts, and what the options of task.json change in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serving.constraints import JsonSchemaConstraint
from serving.errors import InvalidRequestError
from serving.types import FinishReason
from tasks.chat.task import ChatTask, create
from tasks.errors import InputError, OutputError, TaskFileError
from tests import tiny_tokenizers

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | length }} tools{% endif %}{% if shout %}!{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PARTS = "{% for m in messages %}{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endfor %}"
HI = {"role": "user", "content": "Hi"}


def make(folder: Path, *, template: str | None = CHATML, **options: Any) -> ChatTask:
    """The task of a checkpoint with this chat template and these options."""
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), folder)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    (folder / "task.json").write_text(json.dumps({"task": "chat", "name": "tiny", **options}))
    return create(folder, tiny_tokenizers.byte_level())


def text_of(task: ChatTask, **inputs: Any) -> str:
    """The prompt's text without its control tokens."""
    return tiny_tokenizers.byte_level().decode(task.prepare(inputs).token_ids)


def test_a_prompt_is_a_conversation_of_one_message(tmp_path):
    task = make(tmp_path)
    assert task.prepare({"prompt": "Hi"}).token_ids == task.prepare({"messages": [HI]}).token_ids
    assert text_of(task, prompt="Hi") == "user\nHi\nassistant\n"
    assert text_of(task, prompt="Hi", add_generation_prompt=False) == "user\nHi\n"


def test_the_system_prompt_comes_first(tmp_path):
    task = make(tmp_path, defaults={"system_prompt": "Default."})
    system = {"role": "system", "content": "Own."}
    assert text_of(task, prompt="Hi") == "system\nDefault.\nuser\nHi\nassistant\n"
    assert text_of(task, prompt="Hi", system_prompt="Mine.") == "system\nMine.\nuser\nHi\nassistant\n"
    assert text_of(task, messages=[system, HI]) == "system\nOwn.\nuser\nHi\nassistant\n"
    with pytest.raises(InputError, match="system_prompt: messages also has a system message; give one of the two"):
        task.prepare({"messages": [system, HI], "system_prompt": "Mine."})


def test_further_inputs_reach_the_template_or_are_refused(tmp_path):
    task = make(tmp_path, defaults={"chat_template_kwargs": {"shout": True}})
    assert text_of(task, prompt="Hi").endswith("!assistant\n")
    assert text_of(task, prompt="Hi", chat_template_kwargs={"shout": False}).endswith("Hi\nassistant\n")
    with pytest.raises(InvalidRequestError, match="reads no variable 'whisper'; those it reads: shout"):
        task.prepare({"prompt": "Hi", "chat_template_kwargs": {"whisper": True}})
    with pytest.raises(InvalidRequestError, match=r"documents: .* does not use them"):
        task.prepare({"prompt": "Hi", "documents": [{"text": "a"}]})


def test_content_has_the_form_that_the_template_reads(tmp_path):
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert text_of(make(tmp_path), messages=[parts]) == "user\na\nb\nassistant\n"
    task = make(tmp_path, template=PARTS)
    assert text_of(task, messages=[parts, HI]) == "[a][b][Hi]"


def test_tool_calls_are_accepted_in_openai_s_form(tmp_path):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"b": [1, "é"]}'}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None}
    result = {"role": "tool", "tool_call_id": "1", "content": "7"}
    assert '{"b": [1, "é"]}' in text_of(make(tmp_path), messages=[HI, answer, result])
    calls = "{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}"
    loop = "{% for m in messages %}{{ m.role + ':' + m.content }}" + calls + ";{% endfor %}"
    adding = make(tmp_path, template=loop)
    assert text_of(adding, messages=[HI, answer, result]) == "user:Hi;assistant:f;tool:7;"
    without = {key: value for key, value in answer.items() if key != "content"}
    assert text_of(adding, messages=[HI, without, result]) == "user:Hi;assistant:f;tool:7;"
    null = {"role": "assistant", "content": "ok", "tool_calls": None}
    assert "ok\nassistant" in text_of(make(tmp_path), messages=[HI, null])


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"content": "a"}, r"messages\[1\]: has no role; give"),
        ({"role": ["user"], "content": "a"}, r"messages\[1\]: has no role"),
        ({"role": "user"}, r"messages\[1\]: has no content; give"),
        ({"role": "user", "content": None}, r"messages\[1\]: has no content"),
        ({"role": "user", "content": {"text": "a"}}, r"messages\[1\]\.content: is a dict; send a text"),
        (
            {"role": "user", "content": [{"type": "image_url"}]},
            r"messages\[1\]\.content: has a part that is not a text",
        ),
        ({"role": "assistant", "tool_calls": "f()"}, r"messages\[1\]\.tool_calls: is a str; send a list"),
        ({"role": "assistant", "tool_calls": [{"name": "f"}]}, r"messages\[1\]\.tool_calls: has a call without a fun"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            r"messages\[1\]\.tool_calls: arguments are not JSON",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 20_000}}]},
            r"messages\[1\]\.tool_calls: arguments are not JSON: nested too deeply",
        ),
    ],
)
def test_an_invalid_message_is_named(tmp_path, message, problem):
    with pytest.raises(InputError, match=problem):
        make(tmp_path).prepare({"messages": [HI, message]})


def test_without_a_chat_template_a_prompt_is_continued_unchanged(tmp_path):
    task = make(tmp_path, template=None)
    tokenizer = tiny_tokenizers.byte_level()
    prompt = task.prepare({"prompt": " Once <|im_end|>", "add_generation_prompt": True, "messages": []})
    assert prompt.token_ids == tuple(tokenizer.encode(" Once <|im_end|>"))
    refused = {
        "messages": [HI],
        "system_prompt": "a",
        "tools": [{"function": {"name": "f"}}],
        "documents": [{}],
        "chat_template_kwargs": {"a": 1},
        "add_generation_prompt": False,
    }
    for name, value in refused.items():
        inputs = {name: value} if name == "messages" else {"prompt": "a", name: value}
        with pytest.raises(InputError, match=f"{name}: this model has no chat template; send a prompt"):
            task.prepare(inputs)


def test_task_json_can_select_another_template_or_none(tmp_path):
    (tmp_path / "mine.jinja").write_text("Mine: {{ messages[-1].content }}")
    assert text_of(make(tmp_path, chat_template="mine.jinja"), prompt="Hi") == "Mine: Hi"
    assert text_of(make(tmp_path, chat_template=False), prompt="Hi") == "Hi"


def test_json_of_a_schema_is_a_constraint(tmp_path):
    task = make(tmp_path, item_separator=", ", key_separator=": ")
    wrapper = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "boolean"}}}
    prompt = task.prepare({"prompt": "Hi", "json_schema": wrapper})
    assert prompt.constraint == JsonSchemaConstraint('{"type": "boolean"}', ", ", ": ")
    assert task.prepare({"prompt": "Hi"}).constraint is None


def test_text_is_streamed_at_once_and_may_be_truncated(tmp_path):
    reader = make(tmp_path).prepare({"prompt": "Hi"}).reader
    assert [reader.push(" a"), reader.push(""), reader.push("b "), reader.finish(FinishReason.LENGTH)] == [
        " a",
        "",
        "b ",
        "",
    ]
    assert reader.notes == ()


def test_incomplete_json_is_an_error(tmp_path):
    task = make(tmp_path)

    def finish(text: str, reason: FinishReason) -> str:
        reader = task.prepare({"prompt": "Hi", "json_schema": {}}).reader
        assert reader.push(text[:1]) + reader.push(text[1:]) == text
        return reader.finish(reason)

    assert finish('{"a": 1}', FinishReason.STOP) == ""
    with pytest.raises(OutputError, match="the JSON is not complete after 7 characters"):
        finish('{"a": 1', FinishReason.LENGTH)
    with pytest.raises(OutputError, match="is not complete"):
        finish("12", FinishReason.LENGTH)  # the number may continue
    with pytest.raises(OutputError, match=r"ended before it was complete .* give stop_sequences that cannot"):
        finish('{"a": ', FinishReason.STOP)


NO_SYSTEM = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "options", "problem"),
    [
        (CHATML, {"temperature": 0}, "temperature: Extra inputs are not permitted"),
        (CHATML, {"defaults": {"temperature": -1}}, "defaults.temperature: Input should be greater than or equal to 0"),
        (CHATML, {"defaults": {"seed": 1}}, "defaults.seed: Extra inputs are not permitted"),
        (CHATML, {"defaults": {"chat_template_kwargs": {"whisper": 1}}}, "reads no variable 'whisper'"),
        (CHATML, {"chat_template": "../x.jinja"}, "is not the name of a file beside task.json"),
        (CHATML, {"chat_template": "x.jinja"}, "chat_template 'x.jinja' does not exist; put the file beside task.json"),
        (CHATML, {"chat_template": True}, "chat_template"),
        (None, {"defaults": {"system_prompt": "a"}}, "need a chat template; remove them"),
        (NO_SYSTEM, {"defaults": {"system_prompt": "a"}}, "no role 'system'; put the text into the first user message"),
    ],
)
def test_an_impossible_task_file_fails_at_setup(tmp_path, template, options, problem):
    with pytest.raises(TaskFileError) as caught:
        make(tmp_path, template=template, **options)
    assert problem in str(caught.value)
    assert str(tmp_path / "task.json") in str(caught.value)


def test_the_example_of_a_task_file_works(tmp_path):
    task = make(tmp_path)
    (tmp_path / "task.json").write_text(type(task.options).example())
    assert create(tmp_path, tiny_tokenizers.byte_level()).options.name == "my-model"
