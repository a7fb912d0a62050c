"""Which corrections are held out: families of like inputs stay together."""

from __future__ import annotations

from pipeline.improve.families import held_out

TOWNS = ["York", "Bath", "Leeds", "Derby", "Truro", "Wells", "Ely", "Ripon", "Perth", "Truro"]
COLUMNS = "duration_ms, error, http.route, name, trace.trace_id"


def test_a_quarter_is_held_out_and_the_split_depends_on_the_inputs_alone() -> None:
    texts = [f"{COLUMNS}\nquestion about {word * 3}" for word in "abcdefghijklmnopqrstuvwxyzäöüßéèêñçåøæ"]
    found = held_out(texts, [False] * len(texts))
    assert len(texts) // 8 <= sum(found) <= len(texts) // 4
    assert held_out(texts[::-1], [False] * len(texts))[::-1] == found


def test_near_duplicates_and_families_are_in_one_part() -> None:
    families = [[f"the specific {town} delay number {n}" for n in range(4)] for town in TOWNS[:8]]
    texts = [text for family in families for text in family]
    found = held_out(texts, [False] * len(texts))
    assert 0 < sum(found) <= len(texts) // 4
    for first in range(0, len(texts), 4):
        assert len(set(found[first : first + 4])) == 1


def test_what_all_inputs_have_makes_no_family() -> None:
    texts = [f"{COLUMNS}\n{town}" for town in set(TOWNS)]
    assert any(held_out(texts, [False] * len(texts)))


def test_what_a_version_has_learned_is_never_held_out() -> None:
    texts = [f"question about {town}" for town in sorted(set(TOWNS))]
    learned = [n % 2 == 0 for n in range(len(texts))]
    found = held_out(texts, learned)
    assert any(found) and not any(out and known for out, known in zip(found, learned, strict=True))
