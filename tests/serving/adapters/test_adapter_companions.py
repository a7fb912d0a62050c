"""Files beside an adapter that say the same as the base's are accepted, others are refused."""

from __future__ import annotations

import json

import pytest

from serving.adapters.adapter_companions import check_companions
from serving.errors import WeightsError

TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
    "added_tokens": [{"id": 3, "content": "<end>"}],
    "padding": None,
}


@pytest.fixture
def folders(tmp_path):
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    base.mkdir()
    adapter.mkdir()
    (base / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (base / "task.json").write_text('{"task": "chat", "name": "base"}')
    return adapter, base


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"padding": {"strategy": "Fixed"}},
        {"model": {**TOKENIZER["model"], "merges": ["a b"]}},  # as older versions of tokenizers write it
    ],
)
def test_the_same_vocabulary_is_accepted_however_it_was_saved(folders, change):
    adapter, base = folders
    (adapter / "tokenizer.json").write_text(json.dumps(TOKENIZER | change))
    check_companions(adapter, base, base=base)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", TOKENIZER | {"added_tokens": []}),
        ("tokenizer.json", TOKENIZER | {"model": {**TOKENIZER["model"], "merges": ["b a"]}}),
        ("task.json", {"task": "chat", "name": "other"}),
    ],
)
def test_another_vocabulary_or_task_is_refused_by_name(folders, name, content):
    adapter, base = folders
    (adapter / name).write_text(json.dumps(content))
    with pytest.raises(WeightsError, match=f"has its own {name}, which differs from the base's"):
        check_companions(adapter, base, base=base)


def test_another_chat_template_is_refused(folders):
    adapter, base = folders
    (base / "chat_template.jinja").write_text("{{ messages }}")
    (adapter / "chat_template.jinja").write_text("{{ messages }}")
    check_companions(adapter, base, base=base)
    (adapter / "chat_template.jinja").write_text("other {{ messages }}")
    with pytest.raises(WeightsError, match="has a chat template"):
        check_companions(adapter, base, base=base)
