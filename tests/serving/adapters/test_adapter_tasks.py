"""An adapter that was trained with another prompt is asked with that one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.adapters.adapter_tasks import adapter_tasks
from serving.adapters.registry import AdapterEntry
from serving.errors import AdapterError
from tests import tiny_tokenizers

TOKENIZER = tiny_tokenizers.byte_level()
TEMPLATE = "{{ bos_token }}%s: {{ messages[0].content }}"


def write(folder: Path, *, template: str | None = None, config: dict[str, str] | None = None, **task: object) -> Path:
    folder.mkdir()
    if task:
        (folder / "task.json").write_text(json.dumps({"task": "chat", "name": "model", **task}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(TEMPLATE % template)
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write(tmp_path / "base", template="base", config={"bos_token": "^"}, name="base")


def prompt_with(own: Path, base: Path) -> str:
    entries = {"own": AdapterEntry("own", Path("a"), task=own), "plain": AdapterEntry("plain", Path("b"))}
    tasks = adapter_tasks(entries, base, TOKENIZER)
    assert tasks.keys() == {"own"}
    return TOKENIZER.decode(tasks["own"].prepare({"prompt": "Hello"}).token_ids)


def test_its_own_template_is_used_with_the_base_s_special_tokens(base: Path, tmp_path: Path) -> None:
    assert prompt_with(write(tmp_path / "own", template="own"), base) == "^own: Hello"


def test_a_template_in_its_tokenizer_config_comes_before_the_base_s(base: Path, tmp_path: Path) -> None:
    own = write(tmp_path / "own", config={"chat_template": TEMPLATE % "config", "bos_token": "$"})
    assert prompt_with(own, base) == "$config: Hello"


def test_without_one_of_its_own_the_base_s_is_used_with_its_own_options(base: Path, tmp_path: Path) -> None:
    own = write(tmp_path / "own", name="own", defaults={"temperature": 0.5})
    assert prompt_with(own, base) == "^base: Hello"
    entries = {"own": AdapterEntry("own", Path("a"), task=own)}
    assert adapter_tasks(entries, base, TOKENIZER)["own"].prepare({"prompt": "Hello"}).sampling.temperature == 0.5


def test_a_task_with_other_inputs_and_a_wrong_one_are_refused_at_the_start(base: Path, tmp_path: Path) -> None:
    for name, own in {
        "of the task schema": write(tmp_path / "schema", task="schema", name="other"),
        "chat_template": write(tmp_path / "wrong", chat_template="missing.jinja"),
    }.items():
        with pytest.raises(AdapterError, match=f"adapter 'own': task: .* cannot be used: .*{name}"):
            prompt_with(own, base)
