"""create_task: the file beside the checkpoint selects the task, and every mistake in it is explained."""

import json

import pytest

from tasks.errors import TaskFileError
from tasks.honeycomb.task import HoneycombTask
from tasks.task import create_task
from tests.tiny_tokenizers import byte_level


def test_the_file_names_the_task(tmp_path):
    content = {"task": "honeycomb", "name": "x", "prompt": "columns-first", "surface": "json"}
    (tmp_path / "task.json").write_text(json.dumps(content))
    assert isinstance(create_task(tmp_path, byte_level()), HoneycombTask)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", "is not JSON"),
        ("[]", "task is None"),
        ('{"task": "poem"}', "task is 'poem'; known are honeycomb, schema, chat"),
    ],
)
def test_the_error_of_an_invalid_file_explains_it(tmp_path, content, named):
    (tmp_path / "task.json").write_text(content)
    with pytest.raises(TaskFileError, match=named) as caught:
        create_task(tmp_path, byte_level())
    assert '{"task": "chat", "name": "my-model"}' in str(caught.value)


def test_a_missing_file_says_what_to_write(tmp_path):
    with pytest.raises(TaskFileError, match=r"task\.json: .* No such file .* Write one such as"):
        create_task(tmp_path, byte_level())
