"""A task of another Python package: task.json names its module, which says all that the project asks of a task."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.evaluate.command import app
from pipeline.package.new_package import new_package
from pipeline.package.task_choice import TaskChoice
from serving.config import Settings
from serving.model import Model
from tasks.errors import TaskFileError
from tasks.task import create_task, task_name
from tests.pipeline.package.checkpoints import make_checkpoint
from tests.tiny_tokenizers import byte_level

MODULE = '''
"""Shouts: the words of a caller, repeated by the model."""
from pathlib import Path

from serving.types import SamplingParams
from tasks.evaluation.json_answers import JsonEvaluation
from tasks.task import Prompt, TaskFile


class Options(TaskFile):
    mark: str


class Shout:
    long_inputs = "words"
    shorten_hint = "give fewer words"

    def __init__(self, options, tokenizer):
        self.options, self.tokenizer = options, tokenizer

    def prepare(self, inputs):
        ids = self.tokenizer.encode(inputs["words"] + self.options.mark)
        return Prompt(tuple(ids), SamplingParams(max_tokens=64), None, Words())


class Words:
    notes = ()

    def push(self, text):
        return text

    def finish(self, reason):
        return ""


def create(folder, tokenizer):
    return Shout(Options.load(folder), tokenizer)


def example_inputs(content):
    return {"words": "hello" + content["mark"]}


def predict_source(content):
    return Path(__file__).with_name("predict.txt").read_text()


def evaluation(folder):
    return JsonEvaluation("shout", "words", lambda inputs: None, usual_inputs={})
'''
PREDICT = """
import cog
from cog import ConcatenateIterator, Input

from serving.predictor import TaskPredictor


class Predictor(TaskPredictor):
    @cog.streaming
    async def predict(self, words: str = Input(description="What is shouted.")) -> ConcatenateIterator[str]:
        return self.answer(words=words)
"""
TASK = {"task": "shouting.shout", "name": "shout", "mark": "!"}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of the task, in a package beside which nothing else is."""
    folder = tmp_path / "theirs" / "shouting"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "predict.txt").write_text(PREDICT)
    (folder / "shout.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder.parent)
    yield folder / "shout.py"
    for name in [name for name in sys.modules if name.partition(".")[0] == "shouting"]:
        del sys.modules[name]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "weights", task_file=TASK)


@pytest.mark.usefixtures("module")
async def test_it_is_served(weights: Path) -> None:
    model = Model.load(Settings(engine="fake", weights_dir=weights), is_locked=False)
    try:
        answer = model.answer(words="hello")
        await answer
        assert answer.text == "hello!"  # the fake engine repeats its prompt
    finally:
        model.close()


@pytest.mark.usefixtures("module")
def test_a_package_of_it_has_its_predict_and_its_example(weights: Path, tmp_path: Path) -> None:
    next_steps = new_package(tmp_path / "made", weights, TaskChoice())
    assert "./package.py predict -i words='hello!'" in next_steps
    made = tmp_path / "made"
    assert PREDICT.strip().splitlines()[-1] in (made / "predict.py").read_text()
    assert (
        "words"
        in json.loads((made / ".cog" / "openapi_schema.json").read_text())["components"]["schemas"]["Input"][
            "properties"
        ]
    )
    assert (made / "shouting" / "shout.py").read_text() == MODULE  # where predict.py finds it
    assert task_name(made / "weights" / "made") == "shouting.shout"


@pytest.mark.usefixtures("module")
def test_it_is_evaluated_in_its_own_way(weights: Path, tmp_path: Path) -> None:
    cases, results = tmp_path / "cases.jsonl", tmp_path / "results.json"
    cases.write_text('{"input": "hello", "output": "hello!"}\n{"input": "hello", "output": "bye!"}\n')
    arguments = [cases, "--engine", "fake", "--weights", weights, "--json", results]
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    found = json.loads(results.read_text())
    assert (found["settings"]["task"], found["exact"]["value"]) == ("shout", 0.5)


@pytest.mark.usefixtures("module")
def test_its_own_options_are_checked(weights: Path) -> None:
    (weights / "task.json").write_text('{"task": "shouting.shout", "name": "x"}')
    with pytest.raises(TaskFileError, match=r"task\.json: mark: Field required"):
        create_task(weights, byte_level())


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("shouting.whisper", "there is no module shouting.whisper; put its folder beside predict.py, or install it"),
        ("nowhere.at.all", "there is no module nowhere"),
        ("shouting.empty", "does not define create and example_inputs and predict_source and evaluation"),
        ("idlelib.idle", "modules of your own"),  # a checkpoint must not start a program of Python's
        ("shouting", "modules of your own"),
        ("../shout", "modules of your own"),
    ],
)
def test_a_module_that_is_no_task_is_refused(weights: Path, module: Path, name: str, problem: str) -> None:
    module.with_name("empty.py").write_text("")
    (weights / "task.json").write_text(json.dumps({**TASK, "task": name}))
    with pytest.raises(TaskFileError, match=problem.replace(".", r"\.")):
        create_task(weights, byte_level())


def test_what_a_task_s_module_lacks_is_said_as_python_says_it(weights: Path, module: Path) -> None:
    module.write_text("import not_installed_here\n")
    with pytest.raises(ModuleNotFoundError, match="not_installed_here"):
        create_task(weights, byte_level())
