"""task.json of a Honeycomb model; the error of an invalid file shows a valid one."""

import json

import pytest

from tasks.errors import TaskFileError
from tasks.honeycomb.options import HoneycombOptions

GOOD = {"task": "honeycomb", "name": "my-model", "prompt": "columns-first", "surface": "json"}


def write(folder, content):
    (folder / "task.json").write_text(content)
    return folder


def test_options_are_read_and_cannot_change(tmp_path):
    options = HoneycombOptions.load(write(tmp_path, json.dumps(GOOD)))
    assert options == HoneycombOptions(**GOOD)
    with pytest.raises(ValueError, match="frozen"):
        options.name = "other"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (json.dumps(GOOD | {"surface": "yaml"}), "'json' or 'python-repr'"),
        (json.dumps(GOOD | {"prompt": "poem"}), "'question-first' or 'columns-first'"),
        (json.dumps(GOOD | {"extra": 1}), "extra"),
        (json.dumps({"task": "honeycomb", "name": "x"}), "surface"),
        ("[]", "columns-first"),
        ("not json", "Invalid JSON"),
    ],
)
def test_invalid_options_are_named_and_the_error_shows_valid_ones(tmp_path, content, named):
    with pytest.raises(TaskFileError) as caught:
        HoneycombOptions.load(write(tmp_path, content))
    assert str(tmp_path / "task.json") in str(caught.value)
    assert named in str(caught.value)
    works = str(caught.value).partition("A valid file: ")[2]
    assert HoneycombOptions.load(write(tmp_path, works)).name == "my-model"
