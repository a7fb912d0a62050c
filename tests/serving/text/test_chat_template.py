"""Chat templates give the token ids of transformers for 200 conversations of each family."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from serving.errors import InvalidRequestError, WeightsError
from serving.text import Tokenizer
from serving.text.chat_template import ChatTemplate
from tests import tiny_tokenizers
from tests.serving.text import chat_families
from tests.serving.text.chat_families import FAMILIES, Family
from tests.serving.text.conversations import conversation, harmless_text

CALL_IDS = "abcdef123", "XyZ000001"
HELLO = [{"role": "user", "content": "Hello"}]


def assert_same_as_transformers(family: Family, seed: int) -> None:
    rng = random.Random(seed)
    texts = {"id": lambda: rng.choice(CALL_IDS), "key": lambda: harmless_text(rng), "text": lambda: harmless_text(rng)}
    arguments = conversation(rng, family, lambda kind: texts[kind]())
    assert family.template.encode(**arguments) == family.transformers_ids(
        arguments.pop("messages"), **{"tools": None, **arguments}
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_the_token_ids_are_those_of_transformers(name: str) -> None:
    for seed in range(200):
        assert_same_as_transformers(FAMILIES[name], seed)


@pytest.mark.weights
def test_the_token_ids_of_the_real_smollm2_tokenizer_are_those_of_transformers(base_tokenizer: Tokenizer) -> None:
    family = chat_families.smollm2(base_tokenizer)
    for seed in range(200):
        assert_same_as_transformers(family, seed)


@pytest.mark.parametrize("flags", [{"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}])
@pytest.mark.parametrize("make", [tiny_tokenizers.byte_level, tiny_tokenizers.metaspace])
def test_flags_of_control_tokens_have_the_effect_that_they_have_in_transformers(make, flags: dict[str, bool]) -> None:
    """Phi's tokens remove the white space after them, including the caller's."""
    tokenizer = chat_families.with_tokens(make(), ["<|user|>", "<|end|>"], ["<think>"], **flags)
    source = "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + ' <|end|> ' }}{% endfor %}<think>\n "
    family = Family(tokenizer, source, {}, frozenset())
    for seed in range(50):
        assert_same_as_transformers(family, seed)


@pytest.mark.parametrize(
    ("name", "token", "count"),
    [("mistral-v0.3", "<s>", 1), ("llama3", "<|begin_of_text|>", 1), ("llama3.1", "<|begin_of_text|>", 1)],
)
def test_bos_occurs_exactly_once(name: str, token: str, count: int) -> None:
    """Also if the tokenizer would add one itself, as Llama's and Mistral's do."""
    family = FAMILIES[name]
    assert len(family.tokenizer.bos_token_ids) == 1
    ids = family.template.encode([{"role": "user", "content": f"{token} {token}"}])
    assert ids[0] == family.tokenizer.bos_token_ids[0]
    assert ids.count(ids[0]) == count


def test_only_known_variables_reach_the_template() -> None:
    template = FAMILIES["llama3.1"].template
    with_date = template.encode(HELLO, variables={"date_string": "1 Jan 2030"})
    assert "Today Date: 1 Jan 2030" in FAMILIES["llama3.1"].tokenizer.decode(with_date)
    for name in ("dates", "bos_token", "messages", "tools", "raise_exception"):
        with pytest.raises(
            InvalidRequestError, match=f"no variable '{name}'; those it reads: builtin_tools, custom_tools"
        ):
            template.encode(HELLO, variables={name: "x"})


def test_arguments_that_the_template_does_not_use_are_refused() -> None:
    template = FAMILIES["smollm2"].template
    with pytest.raises(InvalidRequestError, match=r"tools: .* does not use them"):
        template.encode(HELLO, tools=[{"type": "function"}])
    with pytest.raises(InvalidRequestError, match=r"documents: .* does not use them"):
        template.encode(HELLO, documents=[{"text": "x"}])
    with pytest.raises(InvalidRequestError, match="messages: the list is empty"):
        template.encode([])


def make(source: str, tokenizer: Tokenizer | None = None, **special_tokens: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, tokenizer or tiny_tokenizers.byte_level(), special_tokens)


LOOP = "{% for m in messages %}{% if m.role == 'user' or m.role == 'assistant' %}{{ m.content }}{% endif %}{% endfor %}"
REFUSAL = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"


@pytest.mark.parametrize("source", [LOOP, REFUSAL + LOOP])
def test_a_system_message_without_a_place_in_the_template_is_an_error(source: str) -> None:
    """Some templates refuse it, and some leave it out silently."""
    template = make(source)
    with pytest.raises(InvalidRequestError, match="no role 'system'; put the text into the first user message"):
        template.encode([{"role": "system", "content": "Be brief."}, *HELLO])
    assert template.encode([{"role": "system", "content": ""}, *HELLO]) if source == LOOP else True


def test_a_role_that_the_template_leaves_out_is_an_error() -> None:
    with pytest.raises(InvalidRequestError, match="no role 'tool'; leave out messages of that role"):
        make(LOOP).encode([*HELLO, {"role": "tool", "content": "1"}])


@pytest.mark.parametrize("has_result", [False, True])
def test_tool_calls_of_which_the_template_writes_nothing_are_an_error(has_result: bool) -> None:
    call = {"type": "function", "id": "call00000", "function": {"name": "f", "arguments": {}}}
    messages = [*HELLO, {"role": "assistant", "content": "", "tool_calls": [call]}]
    messages += [{"role": "user", "content": "and?"}] * has_result
    with pytest.raises(InvalidRequestError, match="writes nothing of tool_calls; write what was called into"):
        make(LOOP).encode(messages)
    names = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}{% endfor %}"
    )
    assert make(names).encode(messages)


def test_a_template_s_error_about_the_messages_reaches_the_caller() -> None:
    with pytest.raises(InvalidRequestError, match="refuses these messages: After the optional system message"):
        FAMILIES["mistral-v0.3"].template.encode([*HELLO, *HELLO])
    with pytest.raises(InvalidRequestError, match=r"cannot read these messages: .* 'str' and 'NoneType'"):
        FAMILIES["smollm2"].template.encode([{"role": "user", "content": None}])
    with pytest.raises(InvalidRequestError, match="surrogate"):
        FAMILIES["smollm2"].template.encode([{"role": "user", "content": "a\ud83d"}])


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe"),
        ("{{ messages[0].update({}) }}", "'update' of 'dict' object is unsafe"),
        ("{{ ''.__class__.__mro__ }}", "'__class__' of 'MarkedText' object is unsafe"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "over 0.1 s"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ 9 ** 99999 }}", "too large"),
        ("{{ range(10 ** 9) }}", "too big"),
    ],
)
def test_a_template_cannot_do_what_the_sandbox_forbids(monkeypatch, source: str, problem: str) -> None:
    monkeypatch.setattr("serving.text.template_renderer.MAX_SECONDS", 0.1)
    monkeypatch.setattr("serving.text.template_renderer.MAX_SECONDS", 0.1)
    with pytest.raises(WeightsError, match=problem):
        make(source).encode(HELLO)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10 ** 9 }}",
        "{{ ([0] * 10 ** 9) | length }}",
        "{% for i in range(99999) %}{{ '%1000d' % i }}{% endfor %}",
    ],
)
def test_a_prompt_that_grows_without_end_is_refused(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="over 4,000,000 characters"):
        make(source).encode(HELLO)


def test_a_template_that_is_not_valid_jinja_is_refused_with_its_line() -> None:
    with pytest.raises(WeightsError, match=r"chat template 'default', line 2: .*; correct it"):
        make("{{ bos_token }}\n{% fro m in messages %}")


def test_a_special_token_without_text_is_a_weights_error() -> None:
    with pytest.raises(WeightsError, match=r"needs bos_token; name it in tokenizer_config\.json"):
        make("{{ bos_token + messages[0].content }}")


def test_control_tokens_that_lose_their_marks_are_an_error_at_setup() -> None:
    """Otherwise the model would read them as plain text and answer badly, without an error."""
    make("{{ '<|im_' ~ 'start|>' ~ messages[0].content }}")
    with pytest.raises(WeightsError, match=r"builds '<\|im_start\|>' with a function or filter"):
        make("{{ '<|im_%s|>' % 'start' ~ messages[0].content }}")


@pytest.mark.parametrize(
    ("source", "text", "parts"),
    [
        ("{{ messages[0].content }}", True, False),
        ("{{ messages[0].content | trim }}", True, False),
        ("{% for part in messages[0].content %}{{ part.text }}{% endfor %}", False, True),
        (
            "{% set c = messages[0].content %}{% if c is string %}{{ c }}{% else %}{{ c[0].text }}{% endif %}",
            True,
            True,
        ),
    ],
)
def test_the_form_of_content_that_a_template_reads_is_detected(source: str, text: bool, parts: bool) -> None:
    template = make(source)
    assert (template.takes_text, template.takes_parts) == (text, parts)


def test_templates_come_from_the_files_that_transformers_reads(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizers.byte_level()

    def read(**arguments: str) -> str | None:
        template = ChatTemplate.from_dir(tmp_path, tokenizer, **arguments)
        return None if template is None else tokenizer.decode(template.encode(HELLO))

    config = tmp_path / "tokenizer_config.json"
    assert read() is None
    config.write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}, "pad_token": None}))
    assert read() is None
    config.write_text(json.dumps({"eos_token": "<end>", "chat_template": "config {{ eos_token }}"}))
    assert read() == "config <end>"
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert read() == "named"
    (tmp_path / "chat_template.jinja").write_text("file {{ bos_token }}")
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<start>"}}))
    assert read() == "file <start>"
    (tmp_path / "mine.jinja").write_text("mine")
    assert read(file="mine.jinja") == "mine"
    with pytest.raises(WeightsError, match=r"other\.jinja: cannot be read"):
        read(file="other.jinja")


def test_calls_with_tools_use_the_tool_template() -> None:
    tokenizer = tiny_tokenizers.byte_level()
    template = ChatTemplate({"default": "plain", "tool_use": "{{ tools | length }}"}, tokenizer, {})
    assert tokenizer.decode(template.encode(HELLO)) == "plain"
    assert tokenizer.decode(template.encode(HELLO, tools=[{"type": "function"}])) == "1"
    with pytest.raises(WeightsError, match="no chat template `default`, only tool_use"):
        ChatTemplate({"tool_use": "x"}, tokenizer, {})


@pytest.mark.parametrize("content", ["3", '{"name": "default"}', '[{"name": "default"}]'])
def test_a_chat_template_of_another_form_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(f'{{"chat_template": {content}}}')
    with pytest.raises(WeightsError, match="neither a text nor a list of objects with name and template; write"):
        ChatTemplate.from_dir(tmp_path, tiny_tokenizers.byte_level())
