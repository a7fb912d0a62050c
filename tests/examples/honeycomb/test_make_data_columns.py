"""Rules that the model learns: which column a phrase means, what values are, and how names are read."""

from random import Random

import pytest

from examples.honeycomb.datagen.assemble import assemble
from examples.honeycomb.datagen.column_set import Column, ColumnSet
from examples.honeycomb.datagen.instruments import instruments, mixed_core
from examples.honeycomb.datagen.phrasebook import Phrasebook, Style, templates
from examples.honeycomb.datagen.question_builder import QuestionBuilder
from examples.honeycomb.datagen.sample_values import parse_scalar
from examples.honeycomb.datagen.vocabulary import vocabularies
from examples.honeycomb.datagen.words import plural, split_words, strip_units


def columns(*names: str) -> ColumnSet:
    """Those columns of the vocabularies, by name; all others are numbers."""
    known = {c.name: c for v in vocabularies().values() for c in v.columns}
    return ColumnSet(tuple(known.get(name, Column(name, "num")) for name in names))


@pytest.mark.parametrize(
    ("phrase", "names", "meant"),
    [
        ("route", ("http.route", "http.method"), "http.route"),
        ("http status code", ("http.status_code", "status_code"), "http.status_code"),
        ("status code", ("http.status_code", "status_code"), "status_code"),
        ("latency", ("sli.latency", "duration_ms"), "duration_ms"),
        ("latency", ("sli.latency", "name"), "sli.latency"),
        ("endpoint", ("http.target", "http.route"), "http.route"),
        ("wait", ("queue.wait_ms", "name"), "queue.wait_ms"),
        ("status", ("order.status", "payment.status"), None),
        ("wait", ("queue.wait_ms", "lock.wait_ms"), None),
        ("colour", ("http.route",), None),
        ("user.id", ("user.id", "user_id"), "user.id"),
        ("user id", ("user.id", "user_id"), None),
    ],
)
def test_a_phrase_means_the_best_match_if_that_is_unique(phrase, names, meant) -> None:
    assert columns(*names).resolve(phrase) == meant


@pytest.mark.parametrize(("held_out", "mixed"), [(False, False), (True, False), (False, True)])
def test_every_mention_means_its_column(held_out: bool, mixed: bool) -> None:
    for seed in range(40):
        rng = Random(seed)
        found = assemble(rng, held_out=held_out, mixed=mixed)
        builder = QuestionBuilder(rng, found, Phrasebook(rng, Style.SEEN))
        for column in found.columns:
            phrase = builder.phrase(column)
            assert phrase is None or found.resolve(phrase) == column.name


def test_a_list_has_one_column_for_each_role() -> None:
    for seed in range(60):
        found = assemble(Random(seed), held_out=False, mixed=seed % 2 == 0).columns
        roles = [column.role for column in found if column.role]
        assert len(roles) == len(set(roles))
        assert len(found) == len({column.name for column in found})


def test_generated_instrumentations_have_no_name_of_the_held_out_one() -> None:
    every = vocabularies()
    kept = {split_words(column.name) for column in every["gateway"].columns}
    known = {split_words(c.name) for v in every.values() if not v.held_out for c in v.columns}
    names = [name for pairs in instruments().names.values() for name, _ in pairs]
    names += [column.name for column in instruments().others]
    ends = [noun for nouns in instruments().nouns.values() for noun in nouns]
    ends += [sibling.name for sibling in instruments().siblings]
    names += [f"{qualifier}_{end}" for qualifier in instruments().qualifiers for end in ends]
    assert not {split_words(name) for name in names} & (kept - known)
    assert set(instruments().names) == {c.role for c in every["otel"].columns if c.role and c.role != "span"}


def test_a_generated_instrumentation_keeps_the_roles_of_its_columns() -> None:
    for seed in range(60):
        roles = [column.role for column in mixed_core(Random(seed)) if column.role]
        assert len(roles) == len(set(roles)) == len(instruments().names)


def test_qualified_names_occur_with_names_that_have_the_same_beginning() -> None:
    alike = 0
    for seed in range(60):
        columns = mixed_core(Random(seed))
        assert len({column.name for column in columns}) == len(columns)
        begins = [split_words(column.name)[0] for column in columns]
        begins = [word for word in begins if word in instruments().qualifiers]
        alike += len(begins) - len(set(begins))
    assert alike > 60


def test_no_column_is_referred_to_by_a_qualifier_alone() -> None:
    found = instruments()
    for qualifier in found.qualifiers:
        for sibling in found.siblings:
            assert len(strip_units(split_words(f"{qualifier}_{sibling.name}"))) > 1
        for other in found.others:
            assert strip_units(split_words(other.name)) != (qualifier,)
            assert qualifier not in (*other.strong, *other.synonyms, *other.weak)


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("404", 404),
        ("0", 0),
        ("1.5", 1.5),
        ("1.2.3", "1.2.3"),
        ("007", "007"),
        ("12ab", "12ab"),
        ("GET", "GET"),
    ],
)
def test_digits_are_numbers_and_everything_else_is_text(typed, value) -> None:
    assert parse_scalar(typed) == value
    assert type(parse_scalar(typed)) is type(value)


def test_names_are_read_as_words() -> None:
    assert split_words("http.statusCode") == ("http", "status", "code")
    assert split_words("k8s.pod-name_v2") == ("k8s", "pod", "name", "v2")
    assert strip_units(("queue", "wait", "ms")) == ("queue", "wait")
    assert strip_units(("is", "cached")) == ("cached",)
    assert strip_units(("size", "bytes")) == ("size",)
    assert strip_units(("request", "bytes")) == ("request", "bytes")
    assert [plural(word) for word in ("service", "status", "city", "trace id", "class", "created_by")] == [
        "services",
        "statuses",
        "cities",
        "trace ids",
        "classes",
        "created_by",
    ]


def test_every_frame_has_templates_for_training_and_for_the_test() -> None:
    for name, (seen, unseen, training) in templates().items():
        assert seen, name
        if name.endswith("_frame"):
            assert unseen and len(seen) >= 2 * len(unseen), name
        assert not {*seen, *training} & set(unseen), name
        has_modifiers = {"{M}" in template for template in seen + unseen + training}
        assert has_modifiers == {name.endswith("_frame")}, f"{name}: only frames, and all of them, take modifiers"
