"""Column lists have three forms and exact names; everything else is an error that names the limit."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import InputError
from tasks.honeycomb.columns import MAX_COLUMNS, MAX_NAME_CHARACTERS, MAX_TEXT_BYTES, parse_columns

ODD_NAMES = ["a,b", "it's", 'say "hi"', "back\\slash", "[x]", "日本 é", "sp ace", "###", "{y}", "emoji😀"]

names = st.lists(
    st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=20)
    .map(str.strip)
    .filter(bool),
    min_size=1,
    max_size=20,
    unique=True,
)


@pytest.mark.parametrize(
    "text",
    [
        "['a', 'b.c']",
        '["a", "b.c"]',
        "a, b.c",
        " a,b.c, ",
        "['a','b.c',]",
        "\n[ 'a' ,\n 'b.c' ]\n",
        "[u'a', 'b.c']",
    ],
)
def test_the_three_forms_mean_the_same(text):
    assert parse_columns(text) == ("a", "b.c")


@pytest.mark.parametrize("write", [repr, json.dumps, lambda value: json.dumps(value, ensure_ascii=False)])
def test_a_list_can_hold_any_name(write):
    assert parse_columns(write(ODD_NAMES)) == tuple(ODD_NAMES)


@given(names)
def test_lists_read_back_exactly(columns):
    assert parse_columns(repr(columns)) == tuple(columns)
    assert parse_columns(json.dumps(columns)) == tuple(columns)


def test_duplicates_keep_their_first_position_and_outer_spaces_are_removed():
    assert parse_columns("['b', ' a ', 'b', 'a']") == ("b", "a")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        (" \n ", "empty"),
        ("[]", "empty"),
        ("[ ]", "empty"),
        ("['']", "name 1 is empty"),
        ("a,,b", "name 2 is empty"),
        ('["a", 1]', "item 2 is 1, not a string"),
        ('["a", ["b"]]', "item 2"),
        ('["a", null]', "item 2 is None"),
        ("['a', 1]", "item 2"),
        ("['a' 'b']", "item 1"),
        ("['a'", "item 1"),
        ("[x]", "item 1"),
        ("['a'] and more", "after the list"),
        ("['a\\x4']", "broken escape"),
        ("('a', 'b')", "neither a list"),
        ('{"a": 1}', "neither a list"),
        ("a'b, c", "neither a list"),
        (r"['a\nb']", "control character"),
        ("a\tb", "control character"),
        (r"['a\u2028b']", "control character"),
        (r'["\ud800"]', "control character"),
    ],
)
def test_any_other_text_is_an_error_that_names_the_input(text, problem):
    with pytest.raises(InputError, match=r"^cols: ") as caught:
        parse_columns(text)
    assert problem in str(caught.value)
    assert "1 to 1,000 names of at most 255 characters, 64 KiB" in str(caught.value)
    assert caught.value.name == "cols"


@pytest.mark.parametrize("write", [repr, json.dumps, ", ".join])
def test_limits_are_exact(write):
    most = [f"c{i}" for i in range(MAX_COLUMNS)]
    assert parse_columns(write(most)) == tuple(most)
    with pytest.raises(InputError, match="over 1,000 names"):
        parse_columns(write([*most, "one_more"]))
    longest = "é" * MAX_NAME_CHARACTERS
    assert parse_columns(write([longest])) == (longest,)
    with pytest.raises(InputError, match="256 characters, the limit is 255"):
        parse_columns(write([longest + "é"]))


def test_the_length_of_a_name_is_measured_without_escapes():
    escaped = r"\N{LATIN SMALL LETTER A}" * MAX_NAME_CHARACTERS
    assert parse_columns(f"['{escaped}']") == ("a" * 255,)


def test_the_text_is_limited_in_bytes_not_characters():
    filler = " " * 65_535
    assert parse_columns("a" + filler) == ("a",)
    with pytest.raises(InputError, match="64 KiB"):
        parse_columns("é" + filler)


HOSTILE = {
    "nested lists": "[" * MAX_TEXT_BYTES,
    "minus signs": "[" + "-" * (MAX_TEXT_BYTES - 1),
    "sums": "[" + "1+" * 32_000,
    "many numbers": "[" + "1," * 32_000 + "1]",
    "many strings": "[" + "'a'," * 16_000 + "]",
    "many escapes": "[" + r"'\d'," * 13_000 + "]",
    "one long escape": "['" + r"\N{DIGIT ONE}" * 5_000 + "']",
    "open quote": "['" + "\\\\" * 32_000,
    "spaces": "[" + " " * 65_000 + "x",
    "commas": "," * MAX_TEXT_BYTES,
    "names": "a," * 32_768,
    "invisible": "['" + "\u200b" * 21_000 + "']",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_refused_within_50_ms(text):
    fastest = min(_refusal_time(text) for _ in range(3))
    assert fastest < 0.05


def _refusal_time(text):
    start = time.process_time()
    with pytest.raises(InputError):
        parse_columns(text)
    return time.process_time() - start


@given(st.text() | st.text(alphabet="['\"\\],a x u{("))
def test_any_text_gives_names_or_an_input_error(text):
    try:
        columns = parse_columns(text)
    except InputError:
        return
    assert columns
    assert all(name and name == name.strip() for name in columns)
    assert len(set(columns)) == len(columns)
