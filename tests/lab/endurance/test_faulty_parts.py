"""Rows that need no server fail when what they try has a fault, and pass without one."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest

from lab.endurance.fuzz import Target, fuzz
from lab.endurance.row import QUICK, verdict
from lab.endurance.stream_parity import stream_parity
from lab.endurance.supply_chain import supply_chain
from pipeline.environment.hashes import REQUIREMENTS
from serving.text import IncrementalDetokenizer
from tests.small_model import NEEDS_WEIGHTS, WEIGHTS

STAGE = SimpleNamespace(weights=WEIGHTS)


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
    result = fuzz(STAGE, QUICK, lambda stage: [target])
    assert verdict(result, QUICK) == ("passed" if read is sound_parser else "failed"), result


class HastyStreamer(IncrementalDetokenizer):
    """Shows halves of characters."""

    def push(self, token_ids):
        return super().push(token_ids) + self.flush()


class ForgetfulStreamer(IncrementalDetokenizer):
    """Loses what it has held back to the end."""

    def flush(self):
        return ""


class TalkativeStreamer(IncrementalDetokenizer):
    """Does not know stop strings."""

    def __init__(self, tokenizer, stop):
        super().__init__(tokenizer)


@NEEDS_WEIGHTS
@pytest.mark.parametrize("streamer", [IncrementalDetokenizer, HastyStreamer, ForgetfulStreamer, TalkativeStreamer])
def test_stream(streamer):
    result = stream_parity(STAGE, QUICK, streamer)
    assert verdict(result, QUICK) == ("passed" if streamer is IncrementalDetokenizer else "failed"), result


@pytest.mark.parametrize(
    ("file", "text", "instead"),
    [
        ("cpu.txt", "", ""),
        ("cpu.txt", "\njsonschema==", "\nnot-hashed==1.0\njsonschema=="),
        ("cpu.txt", "\njsonschema==", "\njsonschema>="),
        ("cpu.txt", "\njsonschema==", "\njsonschema[format]=="),
        ("hashes/image.txt", "\njsonschema==", "\nnot-in-the-sbom==1.0 --hash=sha256:00\njsonschema=="),
        ("hashes/cpu.txt", "--hash=sha256:", "--hash=md5:"),
    ],
)
def test_supply(tmp_path, file, text, instead):
    folder = shutil.copytree(REQUIREMENTS, tmp_path / "requirements")
    content = (folder / file).read_text()
    assert text in content
    (folder / file).write_text(content.replace(text, instead))
    result = supply_chain(STAGE, QUICK, folder)
    assert verdict(result, QUICK) == ("failed" if text else "passed"), result
