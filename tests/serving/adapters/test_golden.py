"""The file of golden prompts is read strictly, and the first token that differs is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.adapters.golden import GoldenPrompt, check_answer, read_golden
from serving.errors import WeightsError
from serving.weights.adapter_files import GOLDEN, adapter_digest

GOOD = GoldenPrompt((1, 2, 3), (4, 5), ends=True)


def write(folder: Path, *lines: str) -> Path:
    (folder / GOLDEN).write_text("".join(lines))
    return folder


def test_what_is_written_is_read_again_and_part_of_the_digest(tmp_path: Path) -> None:
    assert read_golden(tmp_path) == ()
    before = adapter_digest(tmp_path)
    cut = GoldenPrompt((7,), (8, 9), ends=False)
    assert read_golden(write(tmp_path, GOOD.to_line("a\nb"), cut.to_line("c"))) == (GOOD, cut)
    assert (GOOD.max_tokens, cut.max_tokens) == (3, 2)
    assert adapter_digest(tmp_path) != before


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": []},
        {"prompt": [1] * 2049},
        {"prompt": "abc"},
        {"answer": [1.5]},
        {"answer": [True]},
        {"answer": [-1]},
        {"answer": [1] * 129},
        {"ends": 1},
        {"answer": [], "ends": False},
    ],
)
def test_a_line_of_another_form_is_refused_by_its_number(tmp_path: Path, change: dict[str, object]) -> None:
    bad = json.dumps(json.loads(GOOD.to_line("")) | change)
    with pytest.raises(WeightsError, match="line 2: "):
        read_golden(write(tmp_path, GOOD.to_line(""), bad))


@pytest.mark.parametrize("content", ["", GOOD.to_line("") * 17, "x" * (1 << 20) + "\n"])
def test_too_few_and_too_many_are_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(WeightsError, match="keep "):
        read_golden(write(tmp_path, content))


@pytest.mark.parametrize(("answer", "ended", "at"), [((4, 6), True, 2), ((9,), True, 1), ((4, 5, 6), False, 3)])
def test_the_first_token_that_differs_is_named_with_the_remedy(answer: tuple[int, ...], ended: bool, at: int) -> None:
    check_answer(1, GOOD, (4, 5), ended=True)
    with pytest.raises(WeightsError, match=rf"line 7: .* at token {at} of 3; .*ADAPTER_GOLDEN=false"):
        check_answer(7, GOOD, answer, ended=ended)
