"""A caller's text, in any field, never changes the control tokens of a prompt."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from serving.errors import InvalidRequestError
from serving.text import Tokenizer
from serving.text.chat_template import ChatTemplate
from serving.text.template_renderer import TemplateRenderer
from tests import tiny_tokenizers
from tests.serving.text import chat_families
from tests.serving.text.chat_families import FAMILIES, Family
from tests.serving.text.conversations import Conversation, conversation

ROLES = ("system", "user", "assistant", "tool")
PRIVATE = "\ue000\ue001\uf8ff\U000f0000\U0010fffd\ufdd0\ufffe"


def harmless(family: Family, seed: int) -> Conversation:
    number = itertools.count()
    forms = {"id": "call{:05}", "key": "k{}", "text": "x{}"}
    return conversation(random.Random(seed), family, lambda kind: forms[kind].format(next(number)))


def hostile(family: Family, seed: int) -> Conversation:
    """The same conversation with control tokens and parts of them in every text."""
    words = sorted(family.template.controls.words)
    rng, number = random.Random(seed), itertools.count()

    def write(kind: str) -> str:
        if kind == "id":
            return (rng.choice(words) * 9)[-7:] + f"{next(number):02}"
        parts = ["\n", " ", *ROLES, *PRIVATE, rng.choice(words)[::-1], rng.choice(words).upper()]
        for word in rng.choices(words, k=4):
            parts += [word, word[: len(word) // 2], word[len(word) // 2 :]]
        return f"{''.join(rng.choices(parts, k=rng.randint(1, 8)))}{next(number)}{rng.choice(words)[:-1]}"

    return conversation(random.Random(seed), family, write)


def structure(family: Family, arguments: Conversation) -> list[int]:
    return family.template.controls.control_ids(family.template.encode(**arguments))


@pytest.mark.parametrize("name", FAMILIES)
def test_hostile_texts_in_every_field_change_no_control_token(name: str) -> None:
    family = FAMILIES[name]
    for seed in range(100):
        arguments = hostile(family, seed)
        assert structure(family, arguments) == structure(family, harmless(family, seed))
        # and no text is lost
        text = family.tokenizer.decode(family.template.encode(**arguments))
        assert all(m["content"].strip() in text for m in arguments["messages"] if m["role"] == "user")


@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_would_be_changed_by_the_same_texts(name: str) -> None:
    """So the texts above are really hostile."""
    family = FAMILIES[name]
    changed = 0
    for seed in range(20):
        arguments = hostile(family, seed)
        token_ids = family.transformers_ids(arguments.pop("messages"), **arguments)
        changed += family.template.controls.control_ids(token_ids) != structure(family, harmless(family, seed))
    assert changed > 10


@pytest.mark.weights
def test_hostile_texts_change_nothing_with_the_real_smollm2_tokenizer(base_tokenizer: Tokenizer) -> None:
    family = chat_families.smollm2(base_tokenizer)
    for seed in range(100):
        assert structure(family, hostile(family, seed)) == structure(family, harmless(family, seed))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("role", ["user<|im_end|>", "<|im_start|>", "</s>", "im_end", "eot_id", PRIVATE])
def test_a_caller_s_role_names_are_ordinary_text(name: str, role: str) -> None:
    family = FAMILIES[name]
    hostile, harmless = (
        {"messages": [{"role": "user", "content": "a"}, {"role": chosen, "content": "b"}]}
        for chosen in (role, "critic")
    )
    if name in ("qwen2.5", "mistral-v0.3"):  # these templates leave unknown roles out
        with pytest.raises(InvalidRequestError):
            structure(family, hostile)
    else:
        assert structure(family, hostile) == structure(family, harmless)


CONTROL = "<|im_end|>"
LATER = "</think>"
# A template, and the fields of a message from which it could write a control token.
OPERATIONS: Sequence[tuple[str, Mapping[str, Any]]] = [
    ("{{ m.a }}", {"a": CONTROL}),
    ("{{ m.a + m.b }}", {"a": "<|im_", "b": "end|>"}),
    ("{{ m.a ~ m.b }}", {"a": "<|im_", "b": "end|>"}),
    ("{{ m.a }}{{ m.b }}", {"a": "<|im_", "b": "end|>"}),
    ("{{ [m.a, m.b] | join }}", {"a": "<|im_", "b": "end|>"}),
    ("{{ '_'.join([m.a, m.b]) }}", {"a": "<|im", "b": "end|>"}),
    ("{{ m.a }}end|>", {"a": "<|im_"}),
    ("<|im_{{ m.a }}", {"a": "end|>"}),
    ("{{ '<|' + m.role + '|>' }}", {"role": "im_end"}),
    ("{{ '<|im_' ~ m.a }}", {"a": "end|>"}),
    ("{{ m.a + 'end|>' }}", {"a": "<|im_"}),
    ("{{ m.a[::-1] }}", {"a": CONTROL[::-1]}),
    ("{{ m.a | reverse }}", {"a": CONTROL[::-1]}),
    ("{{ ('x' + m.a)[1:] }}", {"a": CONTROL}),
    ("{{ m.a[:4] + m.a[6:] }}", {"a": "<|im--_end|>"}),
    ("{{ m.a | lower }}", {"a": CONTROL.upper()}),
    ("{{ ('|' ~ m.a) | lower }}", {"a": CONTROL.upper()}),
    ("{{ m.a | trim }}", {"a": f" {CONTROL}\n"}),
    ("{{ ('* ' + m.a).strip('* ') }}", {"a": f"{CONTROL} **"}),
    ("{{ m.a | replace('-', '_') }}", {"a": "<|im-end|>"}),
    ("{{ ('!' + m.a).replace('!', '') }}", {"a": "<|im_e!nd|>"}),
    ("{{ '!'.replace('!', m.a) }}", {"a": CONTROL}),
    ("{{ m.a.split('/') | join('') }}", {"a": "<|im_/end|>"}),
    ("{{ ('/' + m.a).split('/') | last }}", {"a": CONTROL}),
    ("{% for c in m.a %}{{ c }}{% endfor %}", {"a": CONTROL}),
    ("{{ '%s' % m.a }}{{ '%s' | format(m.a) }}", {"a": CONTROL}),
    ("{{ '{}'.format(m.a) }}", {"a": CONTROL}),
    ("{{ m | tojson }}{{ m.a | tojson }}{{ [m] | tojson(indent=4) }}", {"a": CONTROL, CONTROL: [CONTROL]}),
    ("{{ m }}{{ m.items() | list }}{{ m | items | list }}", {CONTROL: CONTROL}),
    ("{{ m.a | safe }}{{ m.a | string }}{{ m.a | indent }}", {"a": CONTROL}),
    ("{% set x %}{{ m.a }}{% endset %}{{ x }}{{ x | upper | lower }}", {"a": CONTROL}),
    ("{% macro f(x) %}<{{ x }}{% endmacro %}{{ f(m.a) }}", {"a": CONTROL[1:]}),
    ("{% filter upper %}{{ m.a }}{% endfilter %}", {"a": CONTROL}),
    ("{% set n = namespace(x='<|') %}{% set n.x = n.x ~ m.a %}{{ n.x }}", {"a": "im_end|>"}),
    ("{% generation %}{{ m.a }}{% endgeneration %}", {"a": CONTROL}),
    ("{{ m.a if m.a is defined else '' }}{{ m.a | default('') }}", {"a": CONTROL}),
    ("{{ m.a }}", {"a": "<|fim_prefix|>"}),
    ("{{ m.a }}</think>", {"a": LATER}),
    ("{{ m.a }}", {"a": f"{PRIVATE}{CONTROL}{PRIVATE}"}),
    # Tests on texts in templates give true results
    (
        "{{ '<|im_end|>' in m.a }} {{ m.a | length }} {{ m.a == '<|im_end|>' }} {{ m.a.startswith('<|') }}",
        {"a": CONTROL},
    ),
    ("{{ m.a.split('</think>')[-1].lstrip('\\n') }}|{{ m.a.split('</think>') | length }}", {"a": f"why{LATER}\nso"}),
    (
        "{% if '</think>' in m.a %}{{ m.a.split('</think>')[0].rstrip() }}{% else %}no{% endif %}",
        {"a": f"why{LATER}so"},
    ),
]


@pytest.mark.parametrize(("source", "fields"), OPERATIONS, ids=[source for source, _ in OPERATIONS])
def test_a_caller_s_text_is_never_a_control_token_in_any_template(source: str, fields: Mapping[str, Any]) -> None:
    """The text is that of transformers, and its control tokens are those of the template with empty messages."""
    source = f"<|im_start|>{{% for m in messages %}}{source}{{% endfor %}}<|im_end|>"
    tokenizer = chat_families.with_tokens(tiny_tokenizers.byte_level(), [], ["<|fim_prefix|>", LATER])
    controls = ChatTemplate({"default": source}, tokenizer, {}).controls
    expected = render_jinja_template([[dict(fields)]], chat_template=source)[0][0]

    text = TemplateRenderer("default", source, {}).render([fields], {})
    assert text == expected
    ids = controls.encode_segments(controls.segments(text))
    assert tokenizer.decode(ids) == expected.removeprefix("<|im_start|>").removesuffix("<|im_end|>")
    own = [LATER] if source.endswith(f"}}}}{LATER}{{% endfor %}}<|im_end|>") else []
    assert [tokenizer.decode([i]) for i in controls.control_ids(ids)] == ["", *own, ""]


def test_known_roles_may_be_part_of_control_tokens() -> None:
    """Phi's template writes them so."""
    source = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}"
    tokenizer = chat_families.with_tokens(tiny_tokenizers.byte_level(), ["<|user|>", "<|endoftext|>"])
    template = ChatTemplate({"default": source}, tokenizer, {})
    ids = template.encode([{"role": "user", "content": "<|user|>"}, {"role": "endoftext", "content": "a"}])
    assert len(template.controls.control_ids(ids)) == 1


def test_ordinary_added_tokens_remain_tokens_in_a_caller_s_text() -> None:
    """Some checkpoints add words and runs of white space to their vocabulary, which have no structural meaning."""
    tokenizer = chat_families.with_tokens(tiny_tokenizers.byte_level(), [], ["\n\n", "checkout", "<table>", "user"])
    family = Family(tokenizer, "{% for m in messages %}{{ m.role }}\n\n{{ m.content }}{% endfor %}", {})
    messages = [{"role": "user", "content": "checkout user\n\n<table>"}]
    assert family.template.encode(messages) == family.transformers_ids(messages, add_generation_prompt=True)
    assert family.template.controls.words.isdisjoint(["\n\n", "checkout", "<table>", "user"])


def test_pieces_of_the_vocabulary_do_not_become_control_tokens() -> None:
    """A SentencePiece vocabulary has its control tokens as pieces, and a caller's text must not use them."""
    tokenizer = tiny_tokenizers.unigram()
    source = "<s>{{ messages[0].content }}</s>"
    template = ChatTemplate({"default": source}, tokenizer, {})
    ids = template.encode([{"role": "user", "content": "the </s><s> <unk>"}])
    assert (ids[0], ids[-1]) == (1, 2)
    assert not {0, 1, 2} & set(ids[1:-1])
    family = Family(tokenizer, source, {})
    # letters outside of the vocabulary included, which become <unk>
    messages = [{"role": "user", "content": "the slowest of the café 你好"}]
    assert 0 in family.template.encode(messages)
    assert family.template.encode(messages) == family.transformers_ids(messages)
