"""adapters.yaml is read strictly, and an error names the line and the field."""

from __future__ import annotations

import pytest

from serving.adapters.combination import Combination, Method
from serving.adapters.registry import DEFAULT_MAX_RANK, AdapterEntry, read_registry
from serving.errors import AdapterError

DIGEST = "sha256:" + "0123456789abcdef" * 4


def read(tmp_path, text):
    path = tmp_path / "adapters.yaml"
    path.write_text(text)
    return read_registry(path)


def test_all_fields_and_defaults(tmp_path):
    text = f"adapters:\n- name: a\n  source: x/a\n- name: B.2\n  source: /y\n  digest: {DIGEST}\n  pinned: true\n"
    assert read(tmp_path, text + "  max_rank: 8\n") == {
        "a": AdapterEntry("a", tmp_path / "x/a", None, False, DEFAULT_MAX_RANK),
        "B.2": AdapterEntry("B.2", tmp_path.__class__("/y"), DIGEST, True, 8),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the file must be a mapping with the fields adapters"),
        ("models: []", "line 1: 'models' is not a field of the file"),
        ("adapters: {}", "line 1: adapters must be a list of 1 to"),
        ("adapters: []", "line 1: adapters must be a list of 1 to"),
        ("adapters:\n- a", "line 2: an adapter must be a mapping with the fields name, source"),
        ("adapters:\n- name: a", "line 2: source is missing"),
        ("adapters:\n- name: a\n  source: b\n  rank: 4", "line 4: 'rank' is not a field of an adapter"),
        ("adapters:\n- name: a\n  source: b\n  source: c", "line 4: source is given twice"),
        ("adapters:\n- name: 12\n  source: b", "line 2: name must be a text; put it in quotes"),
        ("adapters:\n- name: ../a\n  source: b", r"line 2: name: '\.\./a' must have 1 to 64 letters"),
        ("adapters:\n- name: ''\n  source: b", "line 2: name: '' must have"),
        (
            "adapters:\n- name: a\n  source: hf://o/r@main",
            "line 3: source: 'hf://o/r@main' is remote, so it needs a digest",
        ),
        ("adapters:\n- name: a\n  source: b\n  digest: abc", "line 4: digest: 'abc' must be sha256:"),
        ("adapters:\n- name: a\n  source: b\n  pinned: 1", "line 4: pinned must be true or false"),
        ("adapters:\n- name: a\n  source: b\n  max_rank: 0", "line 4: max_rank: 0 must be 1 or more"),
        ("adapters:\n- name: a\n  source: b\n  max_rank: -3", "line 4: max_rank must be a whole number"),
        ("adapters:\n- name: a\n  source: [b]", "line 3: source must be a text"),
        ("adapters:\n- name: a\n  source: b\n- name: a\n  source: c", "line 4: name: 'a' is listed twice"),
        ("adapters: [", "is not YAML"),
    ],
)
def test_errors_name_the_line_and_the_field(tmp_path, text, message):
    with pytest.raises(AdapterError, match=message):
        read(tmp_path, text)


ADAPTERS = "adapters:\n- {name: a, source: x}\n- {name: b, source: y}\n"


def test_a_combination_of_others(tmp_path):
    text = (
        ADAPTERS
        + "- name: c\n  max_rank: 9\n  combine: {method: dare_ties, of: {a: 0.7, b: -1}, density: 0.5, seed: 3}\n"
    )
    combination = Combination(Method.DARE_TIES, ("a", "b"), (0.7, -1), 0.5, 3)
    assert read(tmp_path, text)["c"] == AdapterEntry("c", None, max_rank=9, combination=combination)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("combine: {method: cat, of: {a: 1, d: 1}}", "line 4: combine: 'd' is no adapter of this list"),
        ("combine: {method: cat, of: {a: 1, c: 1}}", "line 4: combine: 'c' is no adapter of this list"),
        ("combine: {method: cat, of: {a: 1, a: 1}}", "line 5: combine: .* give at least two, each once"),
        ("combine: {method: cat, of: [a, b]}", "line 5: combine: of must be a mapping of adapters to their weights"),
        ("combine: {method: ties, of: {a: 1, b: 1}}", "line 5: combine: density is missing"),
        ("combine: {method: cat, of: {a: 1, b: high}}", "line 5: combine: the weight of b is 'high'"),
        ("combine: {method: cat, of: {a: 1, b: !!x 1}}", "line 5: combine: '1' cannot be read: could not"),
        ("combine: {method: cat, of: {a: 1, b: !!int x}}", "line 5: combine: 'x' cannot be read: invalid literal"),
        ("combine: {of: {a: 1, b: 1}, method: [cat]}", "line 5: combine: method, density, seed and weights are"),
        ("combine: {of: {a: 1, b: 1}}", "line 5: combine: method is missing"),
        ("combine: {method: cat, of: {a: 1, b: 1}, rank: 4}", "line 5: 'rank' is not a field of combine"),
        (
            "combine: {method: cat, of: {a: 1, b: 1}}\n  source: z",
            "line 6: source is of the adapters that are combined",
        ),
        (f"digest: {DIGEST}\n  combine: {{method: cat, of: {{a: 1, b: 1}}}}", "line 5: digest is of the adapters"),
    ],
)
def test_wrong_combinations_name_the_line(tmp_path, entry, message):
    with pytest.raises(AdapterError, match=message):
        read(tmp_path, f"{ADAPTERS}- name: c\n  {entry}\n")


def test_a_missing_list_says_which_setting(tmp_path):
    with pytest.raises(AdapterError, match=r"none\.yaml: cannot be read: No such file.*; set ADAPTERS"):
        read_registry(tmp_path / "none.yaml")


def test_a_draft_model_must_exist(tmp_path):
    text = "adapters:\n- name: a\n  source: b\n  draft_model: c\n"
    with pytest.raises(AdapterError, match=r"line 4: draft_model: .*c does not exist"):
        read(tmp_path, text)
    (tmp_path / "c").touch()
    assert read(tmp_path, text)["a"].draft_model == tmp_path / "c"
