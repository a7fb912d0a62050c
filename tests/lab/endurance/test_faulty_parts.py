"""The row that needs no server fails when what it tries has a fault, and passes without one."""

from __future__ import annotations

import json

import pytest

from lab.endurance.fuzz import Target, fuzz
from lab.endurance.row import QUICK, verdict


def sound_parser(case):
    return json.loads(case)[0]


def parser_without_a_check(case):
    return json.loads(case)[0] if case != "[]" else [][0]


def parser_that_refuses_all(case):
    raise ValueError(case)


class Panic(BaseException):
    """What a library in Rust raises."""


def parser_that_panics(case):
    if case == "[]":
        raise Panic
    return json.loads(case)


@pytest.mark.parametrize("read", [sound_parser, parser_without_a_check, parser_that_refuses_all, parser_that_panics])
def test_fuzz(read):
    cases = ["[1]", "[", ""] if read is sound_parser else ["[1]", "[", "", "[]"]
    target = Target("it", "[1]", lambda rng: rng.choice(cases), lambda rng: "[1]", read, (ValueError,))
    result = fuzz(None, QUICK, lambda stage: [target])
    assert verdict(result, QUICK) == ("passed" if read is sound_parser else "failed"), result
