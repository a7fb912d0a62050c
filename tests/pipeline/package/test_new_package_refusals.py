"""Checkpoints and options that cannot be served are refused by name, and no files are left."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pipeline.package.errors import PackageError
from pipeline.package.new_package import new_package
from pipeline.package.task_choice import TaskChoice
from pipeline.weights.errors import CheckpointError
from serving.errors import ServingError
from tests.pipeline.package.checkpoints import CONFIG, HONEYCOMB, digests, make_checkpoint


def spoil(folder: Path, what: str) -> None:
    match what:
        case "config":
            (folder / "config.json").unlink()
        case "adapter":
            (folder / "config.json").rename(folder / "adapter_config.json")
        case "tokenizer":
            (folder / "tokenizer.json").unlink()
        case "bin":
            (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        case "tensors":
            (folder / "model.safetensors").unlink()
        case "shard":
            (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
        case "outside":
            (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x.safetensors"}}')
        case "hidden":
            (folder / ".x.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
            (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": ".x.safetensors"}}')
        case "code":
            (folder / "config.json").write_text(json.dumps(CONFIG | {"auto_map": {"AutoModel": "x.Model"}}))
        case "json":
            (folder / "config.json").write_text("{")
        case "header":
            (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      x")
        case "surface":
            (folder / "task.json").write_text(json.dumps(HONEYCOMB | {"surface": "xml"}))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("config", "has no config.json"),
        ("adapter", "is a LoRA adapter; merge it first: scripts/merge_lora"),
        ("tokenizer", "has no tokenizer.json; write one with transformers"),
        ("bin", "safetensors is required"),
        ("tensors", "has neither model.safetensors nor"),
        ("shard", "lacks gone.safetensors"),
        ("outside", "'../x.safetensors', which is not a .safetensors file in its folder"),
        ("hidden", "'.x.safetensors', which is not a .safetensors file in its folder"),
        ("code", "auto_map"),
        ("json", "is not JSON"),
        ("header", "model.safetensors"),
        ("surface", "surface: "),
    ],
)
def test_a_checkpoint_that_cannot_be_served_is_refused_by_name_and_leaves_nothing(
    tmp_path: Path, what: str, message: str
) -> None:
    mine = make_checkpoint(tmp_path / "mine", task_file=HONEYCOMB)
    spoil(mine, what)
    before = digests(mine)
    with pytest.raises((CheckpointError, PackageError, ServingError), match=re.escape(message)):
        new_package(tmp_path / "made", mine, TaskChoice())
    assert [path.name for path in tmp_path.iterdir()] == ["mine"], "a partial package was left"
    assert digests(mine) == before


@pytest.mark.parametrize(
    ("choice", "name", "message"),
    [
        (
            TaskChoice("poetry"),
            None,
            "--task: task is 'poetry'; known are honeycomb, schema, chat, and modules of your",
        ),
        (TaskChoice(), "My Model", "Cog does not allow the name 'My Model'"),
        (TaskChoice(), "a--b", "Cog does not allow the name 'a--b'"),
    ],
)
def test_impossible_options_are_refused(tmp_path: Path, choice: TaskChoice, name: str | None, message: str) -> None:
    mine = make_checkpoint(tmp_path / "mine", task_file=HONEYCOMB)
    with pytest.raises(PackageError, match=message):
        new_package(tmp_path / "made", mine, choice, name=name)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_chat_needs_a_template(tmp_path: Path) -> None:
    mine = make_checkpoint(tmp_path / "mine")
    with pytest.raises(PackageError, match=r"has no chat template, neither chat_template\.jinja"):
        new_package(tmp_path / "made", mine, TaskChoice("chat"))
    (tmp_path / "plain.json").write_text('{"task": "chat", "name": "plain", "chat_template": false}')
    new_package(tmp_path / "made", mine, TaskChoice(None, tmp_path / "plain.json"))
    (mine / "chat_template.jinja").write_text("{{ messages[0].content }}")
    new_package(tmp_path / "other", mine, TaskChoice("chat"))
    assert (tmp_path / "other" / "weights" / "other" / "chat_template.jinja").is_file()


def test_a_schema_that_does_not_compile_is_refused_with_the_location(tmp_path: Path) -> None:
    mine = make_checkpoint(tmp_path / "mine")
    schema = {"type": "object", "properties": {"tags": {"type": "string", "pattern": r"(a)\1"}}}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    (tmp_path / "prompt.txt").write_text("{text}\n")
    choice = TaskChoice("schema", schema=tmp_path / "schema.json", template=tmp_path / "prompt.txt")
    expected = f"{tmp_path / 'schema.json'}: the JSON schema does not compile at #/properties/tags/pattern"
    with pytest.raises(PackageError, match=re.escape(expected)):
        new_package(tmp_path / "made", mine, choice)
    assert not (tmp_path / "made").exists()


def test_a_missing_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="/no/such/folder: no such folder"):
        new_package(tmp_path / "made", Path("/no/such/folder"), TaskChoice())


def test_a_missing_task_is_an_error(tmp_path: Path) -> None:
    mine = make_checkpoint(tmp_path / "mine")
    with pytest.raises(PackageError, match=r"no task was chosen: give --task with one of"):
        new_package(tmp_path / "made", mine, TaskChoice())
