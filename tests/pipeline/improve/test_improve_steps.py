"""The steps of scripts/improve with commands that only write files: what is chosen, refused, kept and resumed."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.improve.improve_task import ImproveOptions, RefusedError, improve
from pipeline.improve.lines import Correction
from pipeline.package.version import read_version
from pipeline.train.kept import Kept, find_kept, keep
from pipeline.weights.errors import CheckpointError
from serving.weights.adapter_files import adapter_digest
from tasks.confidence import Calibration
from tests.tiny_tokenizers import byte_level, save

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WORDS = [a + b + c for a in ("ka", "lo", "mi") for b in ("re", "su", "to") for c in ("na", "po", "qui", "ve", "xa")]
TASK = {"task": "schema", "name": "towns", "schema": SCHEMA, "template": "{text}\n", "inputs": ["text"]}


class Commands:
    """Runs no command: writes what it would leave. `wrong` are the inputs that each model answers wrongly."""

    def __init__(self, **wrong: set[str]) -> None:
        self.wrong, self.ran, self.fails = {"new": set[str](), **wrong}, list[str](), ""
        self.words = list[Sequence[str]]()

    def __call__(self, command: Sequence[str]) -> int:
        name, words = Path(command[0]).name, list(command[1:])
        self.ran.append(name)
        self.words.append(command)
        if name == self.fails:
            return 1
        options = dict(itertools.pairwise(words))
        if name in ("train_adapter", "merge_adapters"):
            folder = Path(options["--output"] if name == "train_adapter" else options["--out"])
            folder.mkdir(parents=True)
            for file in ("adapter_config.json", "adapter_model.safetensors"):
                (folder / file).write_text("{}")
        elif name == "prepare":
            folder = Path(options["--out"])
            folder.mkdir(parents=True)
            (folder / "config.json").write_text('{"max_position_embeddings": 32768}')
            (folder / "model.safetensors").write_text(str(folder.parent.name))
        elif name == "lock_weights":
            Path(options["--lock"]).write_text("locked")
        elif name == "evaluate":
            self.evaluate(Path(words[0]), Path(options["--json"]))
        return 0

    def evaluate(self, questions: Path, report: Path) -> None:
        name = report.stem[:-10]
        names = {"0.5": "half", "1": "trained", "current": "current", "new": "new"}
        wrong = self.wrong[names.get(name, "other")]
        asked = [json.loads(line)["input"] for line in questions.read_text().splitlines()]
        texts = {n: one if isinstance(one, str) else one["text"] for n, one in enumerate(asked, 1)}
        failures = [
            {"line": n, "question": text, "answer": "no", "reference": "yes"}
            for n, text in texts.items()
            if wrong & set(text.split())
        ]
        lost = {one["line"] for one in failures}
        speed = {"median_seconds": 0.1, "output_tokens": 9.0, "model_passes": 3.0}
        scores = [{"line": n, "exact": n not in lost} for n in texts]
        report.parent.mkdir(exist_ok=True)
        agreement = [float(n not in lost) for n in texts]
        found = {"speed": speed, "scores": scores, "failures": failures, "agreement": agreement}
        confidence = [[[0.5 if n in lost else 0.99, n not in lost]] for n in texts]
        report.write_text(json.dumps({**found, "confidence": confidence}))


@pytest.fixture
def options(tmp_path: Path) -> ImproveOptions:
    weights, adapter, data, base = (tmp_path / name for name in ("towns", "adapter", "data", "base"))
    for folder in (weights, adapter, data, base):
        folder.mkdir()
    save(byte_level(), weights)
    (weights / "task.json").write_text(json.dumps(TASK))
    (weights / "config.json").write_text('{"max_position_embeddings": 4096}')
    (weights / "draft.model").write_text("drafts")
    config = {
        "peft_type": "LORA",
        "r": 16,
        "lora_alpha": 32,
        "target_modules": ["model.layers.0.mlp.up_proj", "q_proj"],
    }
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    (adapter / "adapter_model.safetensors").write_text("current")
    (tmp_path / "search").write_text("search")
    for part in ("train", "validation", "test"):
        lines = [{"input": f"old {part} {word}", "output": {"city": word}} for word in WORDS]
        (data / f"{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    keep(weights, Kept(str(base), adapter, tmp_path / "search", data))
    return ImproveOptions(weights, tmp_path / "towns-2")


CORRECTIONS = [Correction({"text": f"new {word}"}, '{"city": "Bath"}') for word in WORDS[:20]]
CORRECTIONS += [Correction({"text": "shown York"}, '{"city": "York"}', is_example=True)]

MORE = [Correction({"text": f"new {word}"}, '{"city": "Bath"}') for word in WORDS[20:]]


def test_a_candidate_that_improves_and_holds_becomes_a_version(
    options: ImproveOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = Commands(current={"new"}, trained={"validation"}, half={"shown"}, other={"new"})
    improve(options, CORRECTIONS, commands)
    shown = capsys.readouterr().out
    out = options.out
    assert (out / "model.safetensors").read_text() == "0.5" and (out / "draft.model").read_text() == "drafts"
    assert json.loads((out / "config.json").read_text()) == {"max_position_embeddings": 4096}
    record = read_version(out)
    assert record is not None and (record.parent, record.chosen) == ("towns", "mean 0.5")
    assert record.figures["held-out corrections"].after == 1 and record.lost["examples of the playground"] == 1
    assert "- trained adapter: may lose" in shown and "- mean 0.75: agrees no more" in shown
    card = out.with_name("towns-2.card.md").read_text()
    assert "shown York → no, not yes" in card and "scripts/versions promote towns-2" in shown
    assert "(towns-2.confidence.png)" in card and out.with_name("towns-2.confidence.png").is_file()
    assert Calibration.beside(out).share(0.99) > 0.9
    kept = find_kept(out.parent, out)
    assert kept.search is not None and kept.data is not None and kept.base == str(out.parent / "base")
    assert {path.name for path in kept.data.iterdir()} == {
        *("train.jsonl", "validation.jsonl", "test.jsonl", "corrections.jsonl")
    }
    assert not list(out.parent.glob(".towns-2.*"))
    assert commands.ran.count("prepare") == 3 and commands.ran.count("evaluate") == 5


@pytest.mark.parametrize("trained", [{"validation"}, {"new"}], ids=["breaks", "no gain"])
def test_a_version_that_is_no_better_is_refused_with_the_table(
    options: ImproveOptions, trained: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    commands = Commands(current={"new"}, trained=trained, half=trained, other=trained)
    with pytest.raises(RefusedError, match="towns stays as it is"):
        improve(options, CORRECTIONS, commands)
    assert "| held-out corrections (" in capsys.readouterr().out
    assert not options.out.exists() and "train_drafter" not in commands.ran


def test_a_failed_step_goes_on_there_and_the_same_candidate_is_not_placed_again(
    options: ImproveOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = Commands(current={"new"}, trained=set(), half={"new"}, other={"new"})
    for fails in ("merge_adapters", "lock_weights"):
        commands.fails = fails
        with pytest.raises(CheckpointError, match="failed with exit code 1"):
            improve(options, CORRECTIONS, commands)
    (options.out / "draft.model").write_text("trained on")
    commands.fails, commands.ran = "", []
    capsys.readouterr()
    improve(options, CORRECTIONS, commands)
    assert commands.ran == ["lock_weights", "evaluate"]
    plan, _, _ = capsys.readouterr().out.partition("At most")
    done = [line.endswith(", done before") for line in plan.splitlines() if line.startswith("[")]
    assert done == [True] * (len(done) - 2) + [False] * 2
    assert (options.out / "draft.model").read_text() == "trained on"


def test_after_a_refusal_more_corrections_make_other_candidates_and_another_limit_none(options: ImproveOptions) -> None:
    commands = Commands(current={"new"}, trained={"validation"}, half={"validation"}, other={"validation"})
    with pytest.raises(RefusedError):
        improve(options, CORRECTIONS, commands)
    commands.ran = []
    with pytest.raises(RefusedError):
        improve(replace(options, limit=4), CORRECTIONS, commands)
    assert commands.ran == []
    commands.wrong["half"] = set()
    improve(options, [*CORRECTIONS, Correction({"text": "new Ely"}, '{"city": "Ely"}')], commands)
    assert commands.ran.count("prepare") == 3 and (options.out / "model.safetensors").read_text() == "0.5"


def test_the_command_that_trains_goes_on_from_the_current_adapter(options: ImproveOptions) -> None:
    seen = list[Sequence[str]]()

    def call(command: Sequence[str]) -> int:
        seen.append(command)
        return 1

    with pytest.raises(CheckpointError):
        improve(options, CORRECTIONS, call)
    words = dict(itertools.pairwise(seen[0]))
    assert words["--targets"] == "q_proj,up_proj" and (words["--rank"], words["--alpha"]) == ("16", "32")
    assert words["--init"] == str(options.weights.with_name("towns.train") / "adapter")


def test_a_folder_that_is_there_is_not_overwritten(options: ImproveOptions) -> None:
    options.out.mkdir()
    with pytest.raises(CheckpointError, match="exists; give another --out"):
        improve(options, CORRECTIONS, Commands())


@pytest.fixture
def on_demand(options: ImproveOptions) -> ImproveOptions:
    """An adapter on the same weights, which are quantized, and what is kept of it."""
    adapter = options.out.with_name("mine")
    shutil.copytree(options.out.with_name("adapter"), adapter)
    (options.weights / "config.json").write_text('{"quantization_config": {}}')
    for name, text in {"task.json": json.dumps(TASK), "draft.model": "own drafts", "golden.jsonl": "old"}.items():
        (adapter / name).write_text(text)
    keep(adapter, Kept(str(options.out.with_name("base")), adapter, None, options.out.with_name("data")))
    return replace(options, adapter=adapter, out=options.out.with_name("mine-2"))


def test_an_adapter_on_demand_is_trained_on_and_judged_as_it_is_served(
    on_demand: ImproveOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = Commands(current={"new"}, trained={"validation"}, half=set(), other={"new"})
    improve(on_demand, CORRECTIONS, commands)
    out, adapter = on_demand.out, on_demand.adapter
    assert adapter is not None
    assert {path.name: path.read_text() for path in out.iterdir()} == {
        "adapter_config.json": "{}",
        "adapter_model.safetensors": "{}",
        "task.json": json.dumps(TASK),
        "draft.model": "own drafts",
    }
    assert commands.ran.count("evaluate") == 5 and not {"prepare", "lock_weights"} & set(commands.ran)
    asked = [words for words in commands.words if Path(words[0]).name == "evaluate"]
    assert all(words[words.index("--weights") + 1] == str(on_demand.weights) for words in asked)
    assert [Path(words[words.index("--on-demand") + 1]).name for words in asked] == [
        *("mine", "adapter-0.5", "adapter-1", "adapter-0.75", "mine-2")
    ]
    assert all(words[words.index("--task") + 1] == str(adapter / "task.json") for words in asked)
    (drafter,) = (words for words in commands.words if Path(words[0]).name == "train_drafter")
    assert drafter[drafter.index("--adapter") + 1] == str(out)
    trained = dict(itertools.pairwise(commands.words[0]))
    assert (trained["--init"], trained["--base"]) == (str(adapter), str(out.with_name("base")))
    record = read_version(out)
    assert record is not None and (record.parent, record.chosen) == ("mine", "mean 0.5")
    assert adapter_digest(out) in capsys.readouterr().out
    (out / "adapter_config.json").write_text((adapter / "adapter_config.json").read_text())  # the fake wrote nothing
    improve(replace(on_demand, adapter=out, out=out.with_name("mine-3")), [*CORRECTIONS, *MORE], commands)
    record = read_version(out.with_name("mine-3"))
    assert record is not None and record.parent == "mine-2"


def test_an_adapter_that_is_no_better_is_refused_too(on_demand: ImproveOptions) -> None:
    with pytest.raises(RefusedError, match="mine stays as it is"):
        improve(on_demand, CORRECTIONS, Commands(current={"new"}, trained={"new"}, half={"new"}, other={"new"}))
    assert not on_demand.out.exists()


def test_an_adapter_on_quantized_weights_whose_base_is_not_known_needs_it(on_demand: ImproveOptions) -> None:
    shutil.rmtree(on_demand.out.with_name("mine.train"))
    with pytest.raises(CheckpointError, match="name it with --base"):
        improve(on_demand, CORRECTIONS, Commands())
    with pytest.raises(CheckpointError, match="give --replay"):
        improve(replace(on_demand, base=str(on_demand.out.with_name("base"))), CORRECTIONS, Commands())
