"""From a file of examples to all that training takes, with sentences that say what was chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.answer_format.errors import ExamplesError
from pipeline.evaluate.case_tokens import case_tokens
from pipeline.package.task_choice import TaskChoice, task_content
from pipeline.paths import ROOT
from pipeline.train.choose import Choice, choose
from pipeline.train.example_files import Part
from serving.text import Tokenizer
from tasks.errors import TaskFileError
from tasks.task import create_evaluation
from tests.pipeline.train.example_files import addresses, utterances, write
from tests.tasks.schema.task_files import write_task

CONTACTS = ROOT / "examples" / "contacts"


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def base(folder: Path) -> Path:
    write_task(folder, {"type": "object", "properties": {}})
    (folder / "config.json").write_text('{"eos_token_id": 0}')
    return folder


def chosen(tmp_path: Path, *examples: Any, **options: Any) -> Choice:
    return choose(write(tmp_path / "examples.jsonl", *examples), tmp_path / "out", **options)


def trained_texts(choice: Choice, tmp_path: Path, part: str = "train") -> list[tuple[str, str]]:
    """The prompts and answers that scripts/train_adapter reads, with the end token."""
    model = base(tmp_path / "base")
    tokenizer = Tokenizer.from_dir(model)
    cases = case_tokens(choice.folder / f"{part}.jsonl", model, choice.task_file)
    return [(tokenizer.decode(tokens[:start]), tokenizer.decode(tokens[start:-1])) for tokens, start in cases]


def test_utterances_are_rewritten_in_the_order_of_the_schema(tmp_path: Path) -> None:
    choice = chosen(tmp_path, *utterances(60))
    assert choice.task == "schema"
    assert choice.counts == {Part.TRAIN: 36, Part.VALIDATION: 12, Part.TEST: 12}
    assert choice.schema is not None
    order = list(choice.schema["properties"]["slots"]["properties"])
    lines = [line for part in Part for line in records(choice.folder / f"{part}.jsonl")]
    assert {line["input"] for line in lines} == {example["input"] for example in utterances(60)}
    assert all(list(line["output"]["slots"]) == [k for k in order if k in line["output"]["slots"]] for line in lines)
    by_input = {example["input"]: example["output"] for example in utterances(60)}
    assert all(line["output"] == by_input[line["input"]] for line in lines)
    said = "\n".join(choice.notes)
    assert "examples.jsonl has 60 examples.\nThat is few" in said
    assert "because all 60 outputs are JSON objects" in said
    assert "An answer has 2 keys: intent, slots.\nslots has 3 keys: " in said
    assert "it may lack dish." in said
    assert "few and repeat: intent (2)" in said
    assert "rewritten in the schema's: 20." in said
    assert "36 for train, 12 for validation, 12 for test" in said


def test_the_trainer_and_prepare_take_what_was_written(tmp_path: Path) -> None:
    choice = chosen(
        tmp_path, *addresses(), {"input": "x 1", "output": '{"street":"x","number":"1","city":null,"state":null}'}
    )
    texts = dict(trained_texts(choice, tmp_path) + trained_texts(choice, tmp_path, "test"))
    texts |= trained_texts(choice, tmp_path, "validation")
    assert texts["### Input:\n7 Rue Crémieux\n\n### Output:\n"] == (
        '{"number": "7", "street": "Rue Crémieux", "city": null, "state": null}'
    )
    assert texts["### Input:\nx 1\n\n### Output:\n"] == '{"number": "1", "street": "x", "city": null, "state": null}'
    content = task_content(tmp_path / "base", "mine", TaskChoice(task_file=choice.task_file))
    assert (content["schema"], content["item_separator"], content["key_separator"]) == (choice.schema, ", ", ": ")
    assert content["template"] == (choice.folder / "prompt.txt").read_text()
    assert json.loads((choice.folder / "schema.json").read_text()) == choice.schema
    cases, refused = create_evaluation(choice.folder).read_cases(choice.cases)
    assert (len(cases), refused) == (11, [])
    [first, *_] = records(choice.folder / "validation.jsonl")
    assert cases[0].reference == first["output"]


def test_numbers_keep_their_digits(tmp_path: Path) -> None:
    path = tmp_path / "prices.jsonl"
    path.write_text("".join(f'{{"input": "item {"abcdefghijkl"[i]}", "output": {{"p": {i}.50}}}}\n' for i in range(12)))
    choice = choose(path, tmp_path / "out")
    assert all(answer.endswith(".50}") for _, answer in trained_texts(choice, tmp_path))


def test_a_prompt_names_each_field_of_an_object(tmp_path: Path) -> None:
    examples = [
        {"input": {"question": f"what is {c}?", "seed": 5, "my columns": [c, "x"], "{seed_}": None}, "output": {"a": c}}
        for c in "abcdefghijklm"
    ]
    choice = chosen(tmp_path, *examples)
    assert choice.prompt is not None
    assert choice.prompt.inputs == ("question", "seed_", "my_columns", "seed__2")
    texts = [text for part in Part for text in trained_texts(choice, tmp_path, part)]
    expected = (
        '### Question:\nwhat is b?\n\n### Seed:\n5\n\n### My columns:\n["b", "x"]\n\n### Seed:\n\n\n### Output:\n'
    )
    assert (expected, '{"a": "b"}') in texts
    assert "seed is called seed_" in "\n".join(choice.notes)


def test_a_system_message_that_never_changes_is_the_default_of_its_input(tmp_path: Path) -> None:
    def line(letter: str, system: str) -> dict[str, Any]:
        asked = [{"role": "system", "content": system}, {"role": "user", "content": f"{letter}?"}]
        return {"messages": [*asked, {"role": "assistant", "content": json.dumps({"a": letter})}]}

    choice = chosen(tmp_path, *(line(letter, "Copy it.") for letter in "abcdefghijklm"))
    assert json.loads(choice.task_file.read_text())["defaults"] == {"system_prompt": "Copy it."}
    texts = [text for part in Part for text in trained_texts(choice, tmp_path, part)]
    assert ("### System prompt:\nCopy it.\n\n### Prompt:\nb?\n\n### Output:\n", '{"a": "b"}') in texts
    assert "Requests may leave out system_prompt, which is the same in all examples" in "\n".join(choice.notes)
    for one in (one for part in Part for one in records(choice.folder / f"{part}.jsonl")):
        assert one["input"].keys() == {"prompt"}, "as requests are kept, so that a correction replaces its example"
    choice = chosen(tmp_path, *(line(letter, f"Copy {letter}.") for letter in "abcdefghijklm"))
    assert choice.prompt is not None and choice.prompt.inputs == ("system_prompt", "prompt")
    assert "defaults" not in json.loads(choice.task_file.read_text())


def test_objects_with_many_fields_are_one_input(tmp_path: Path) -> None:
    examples = [{"input": {f"f{k}": f"{c}{k}" for k in range(30)}, "output": {"a": c}} for c in "abcdefghijklm"]
    choice = chosen(tmp_path, *examples)
    assert choice.prompt is not None
    assert choice.prompt.inputs == ("text",)
    assert trained_texts(choice, tmp_path)[0][0].startswith('### Input:\n{"f0": "')


def test_texts_are_a_chat(tmp_path: Path) -> None:
    examples = [{"input": f"say {c}", "output": f"I say {c}"} for c in "abcdefghijkl"]
    choice = chosen(tmp_path, *examples)
    assert (choice.task, choice.schema, choice.prompt) == ("chat", None, None)
    assert json.loads(choice.task_file.read_text()) == {"task": "chat", "name": "out"}
    assert {json.dumps(line) for part in Part for line in records(choice.folder / f"{part}.jsonl")} == set(
        map(json.dumps, examples)
    )
    assert not (choice.folder / "schema.json").exists()


def test_fields_of_a_chat_are_one_message_and_its_own_inputs_stay(tmp_path: Path) -> None:
    fields = [{"input": {"from": c, "to": f"{c}{c}"}, "output": c} for c in "abcdefghijkl"]
    choice = chosen(tmp_path, *fields)
    assert {"input": "### From:\na\n\n### To:\naa", "output": "a"} in [
        line for part in Part for line in records(choice.folder / f"{part}.jsonl")
    ]
    own = [{"input": {"prompt": c, "system_prompt": f"be {c}"}, "output": c} for c in "abcdefghijkl"]
    choice = chosen(tmp_path / "own", *own)
    assert choice.prompt is None
    assert all(line["input"]["system_prompt"][:3] == "be " for line in records(choice.folder / "train.jsonl"))


def test_a_chat_s_system_message_that_never_changes_is_its_default(tmp_path: Path) -> None:
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ""}]
    lines = [
        {"messages": [said[0], {**said[1], "content": c}, {"role": "assistant", "content": f"I say {c}"}]}
        for c in "abcdefghijkl"
    ]
    choice = chosen(tmp_path, *lines)
    assert json.loads(choice.task_file.read_text())["defaults"] == {"system_prompt": "Be brief."}
    assert {"input": {"prompt": "a"}, "output": "I say a"} in [
        line for part in Part for line in records(choice.folder / f"{part}.jsonl")
    ]
    assert "may leave out system_prompt" in "\n".join(choice.notes)


def test_mixed_outputs_are_an_error_or_a_chat(tmp_path: Path) -> None:
    objects = [{"input": c, "output": {"a": c}} for c in "abcdefghijkl"]
    with pytest.raises(ExamplesError, match="1 of 13 outputs are texts") as caught:
        chosen(tmp_path, *objects, {"input": "m", "output": '{"a": "m'})
    assert "examples.jsonl:13: output is not JSON: Unterminated string" in str(caught.value)
    choice = chosen(tmp_path, *objects, {"input": "m", "output": "none"}, task="chat")
    outputs = {line["output"] for part in Part for line in records(choice.folder / f"{part}.jsonl")}
    assert {'{"a": "b"}', "none"} < outputs
    texts = [{"input": c, "output": c} for c in "abcdefghijkl"]
    choice = chosen(tmp_path, *texts, {"input": "m", "output": "{}"})
    assert "because the outputs are texts; 1 of them are JSON" in "\n".join(choice.notes)
    with pytest.raises(ExamplesError, match="1 inputs are texts and 12 are objects"):
        chosen(tmp_path, *({"input": {"a": c}, "output": c} for c in "abcdefghijkl"), {"input": "m", "output": "m"})


def test_a_given_schema_is_taken_with_its_order(tmp_path: Path) -> None:
    text = {"type": ["string", "null"]}
    names = ["state", "city", "street", "number"]
    schema = tmp_path / "mine.json"
    schema.write_text(json.dumps({"type": "object", "properties": dict.fromkeys(names, text), "required": names}))
    choice = chosen(tmp_path, *addresses(), schema=schema)
    assert all(list(line["output"]) == names for line in records(choice.folder / "train.jsonl"))
    schema.write_text(json.dumps({"type": "object", "properties": {"number": text}}))
    with pytest.raises(ExamplesError, match="does not allow 12 of 12 answers") as caught:
        chosen(tmp_path / "other", *addresses(), schema=schema)
    assert "examples.jsonl:1: after " in str(caught.value)
    assert list((tmp_path / "other" / "out").iterdir()) == []
    schema.write_text("{}")
    with pytest.raises(TaskFileError, match="allows any value"):
        chosen(tmp_path, *addresses(), schema=schema)
    with pytest.raises(ExamplesError, match="give one of them"):
        chosen(tmp_path, *addresses(), schema=schema, task="chat")


def test_answers_that_a_given_schema_does_not_allow_are_left_out_if_few(tmp_path: Path) -> None:
    schema = tmp_path / "mine.json"
    schema.write_text(json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}))
    examples = [{"input": f"say {a} {b}", "output": {"a": 1}} for a in "abcdef" for b in "pqrst"]
    choice = chosen(tmp_path, *examples, {"input": "m", "output": {"a": "one"}}, schema=schema)
    assert sum(choice.counts.values()) == 30
    assert "were left out: 1\nexamples.jsonl:31: after " in "\n".join(choice.notes)


def test_categories_are_kept_and_other_fields_are_named(tmp_path: Path) -> None:
    examples = [{"id": 5, "input": c, "output": {"a": c}, "category": f"of {c}"} for c in "abcdefghijkl"]
    choice = chosen(tmp_path, *examples)
    assert all(line["category"] == f"of {line['input']}" for line in records(choice.folder / "train.jsonl"))
    assert "Fields of the lines that are not used: id." in choice.notes
    assert len(create_evaluation(choice.folder).read_cases(choice.cases)[0]) == 10


def test_nothing_of_an_earlier_choice_stays_and_no_example_is_overwritten(tmp_path: Path) -> None:
    chosen(tmp_path, *addresses())
    choice = chosen(tmp_path, *addresses(), task="chat")
    assert not {"schema.json", "prompt.txt"} & {path.name for path in choice.folder.iterdir()}
    with pytest.raises(ExamplesError, match=r"\.jsonl would be overwritten"):
        choose(choice.folder, choice.folder)


def test_the_example_contacts(tmp_path: Path) -> None:
    choice = choose(CONTACTS, tmp_path / "out")
    assert choice.counts == {Part.TRAIN: 80, Part.VALIDATION: 16, Part.TEST: 20}
    assert choice.schema is not None
    assert choice.schema["required"] == ["name", "phone", "email"]
    assert "(train and validation as given)" in "\n".join(choice.notes)
    assert records(choice.cases)[15]["input"] in {line["input"] for line in records(CONTACTS / "validation.jsonl")}
    again = choose(CONTACTS, tmp_path / "again")
    for name in ("train.jsonl", "validation.jsonl", "test.jsonl", "cases.jsonl", "schema.json"):
        assert (choice.folder / name).read_bytes() == (again.folder / name).read_bytes()
