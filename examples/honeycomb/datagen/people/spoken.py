"""Write a meaning in English: short or polite sentences, questions, and notes in few words."""

from dataclasses import replace

from examples.honeycomb.datagen.people import sentence_words as words
from examples.honeycomb.datagen.people.condition_words import condition, conditions, has_commas, with_unit
from examples.honeycomb.datagen.people.meaning import Meaning
from examples.honeycomb.datagen.people.operator_words import AGGREGATES
from examples.honeycomb.datagen.people.ranges import step_words, time_words
from examples.honeycomb.datagen.people.speaker import Speaker
from examples.honeycomb.datagen.question_builder import guard

_SUPERLATIVES = frozenset({"highest", "peak", "largest", "biggest", "lowest", "smallest", "how"})  # not after "highest"


def english(t: Speaker, m: Meaning) -> str:
    """The meaning as one sentence, short or long."""
    return _sentence(t, m, words.POLITE if t.chance(0.12) else words.PLAIN)


def polite(t: Speaker, m: Meaning) -> str:
    """The meaning as people write to a colleague."""
    return _sentence(t, m, words.POLITE)


def terse(t: Speaker, m: Meaning) -> str | None:
    """`url.full contains signup by region`: the words of the conditions and nothing that could be left out."""
    if m.having or m.ranked:
        return None
    m = t.say_errors(m)
    head = t.calculations(m) if m.calculations[0][0] != "COUNT" or not m.clauses else ""
    head = head or (t.events if t.names_errors else "")
    join = t.rng.choice((" or ", " OR ") if m.any_of else (" and ", " and ", ", " if not has_commas(m) else " and "))
    asked = join.join(condition(t, c, verb=True) for c in m.clauses)
    group = f"by {t.names(m.groups)}" if m.groups else ""
    parts = [head, *((group, asked) if head and t.chance(0.6) else (asked, group))]
    parts += [time_words(t.rng, m), step_words(t.rng, m.step) if m.step else ""]
    return " ".join(part for part in parts if part) or None


def two_sentences(t: Speaker, m: Meaning) -> str | None:
    """The meaning with its conditions or groups in a second sentence."""
    if (not m.clauses and not m.groups) or m.ranked or m.having:
        return None
    first = _head(t, replace(m, groups=()) if not m.clauses else m)
    when = f" {time_words(t.rng, m)}".rstrip()
    if m.clauses:
        rest = (" or " if m.any_of else " and ").join(condition(t, c, verb=True) for c in m.clauses)
        second = t.rng.choice(words.SECOND_CONDITION).format(r=rest)
    else:
        second = t.rng.choice(words.SECOND_GROUP).format(r=t.names(m.groups))
    text = f"{t.rng.choice(words.OPENING)} {first}{when}. {second}."
    return text + (f" Chart it {step_words(t.rng, m.step)}." if m.step else "")


def telegram(t: Speaker, m: Meaning) -> str | None:
    """The meaning in as few words as possible, in parts."""
    if m.having or m.any_of or (m.ranked and m.ascending):
        return None
    m = t.say_errors(m)
    head = t.calculations(m)
    if m.calculations[0][0] == "COUNT":
        bare = "" if m.groups or m.clauses else "count"
        head = t.events if t.names_errors else t.rng.choice(("count", "count", t.events, bare))
    groups = f"by {t.names(m.groups)}" if m.groups else ""
    limit = f"top {m.limit}" if m.limit else "most first" if m.ranked else ""
    parts = [head, groups, *(condition(t, c, verb=False) for c in m.clauses), limit]
    parts += [time_words(t.rng, m), step_words(t.rng, m.step) if m.step else ""]
    marks = ("; ", " / ") if has_commas(m) else (", ", ", ", " / ", " - ", "; ", " ")
    return t.rng.choice(marks).join(part for part in parts if part) or None


def _sentence(t: Speaker, m: Meaning, frames: tuple[str, ...]) -> str:
    m = t.say_errors(m)
    complete = m.ranked and len(m.calculations) == 1
    head = _ranked(t, m) if complete else _having_head(t, m) if m.having and t.chance(0.65) else _head(t, m)
    having = "" if head.endswith("\x04") else _having_tail(t, m)
    head = head.rstrip("\x04")
    asked, when, step = conditions(t, m), time_words(t.rng, m), step_words(t.rng, m.step) if m.step else ""
    if asked and asked.startswith(("where", "when", "if", "with", "for")) and not having and t.chance(0.1):
        return f"{asked}{t.rng.choice((', ', ': ', ' '))}{' '.join(part for part in (head, when, step) if part)}"
    if when and t.chance(0.1):
        return (
            f"{when}{t.rng.choice((', ', ': ', ' '))}{' '.join(part for part in (head, asked, having, step) if part)}"
        )
    parts = [asked, having]
    parts.insert(t.rng.choice((0, 1, 2, 2)), when)
    text = " ".join(part for part in (head, *parts, step) if part)
    if head.startswith(("how ", "which", "what")):
        return text + t.rng.choice(("", "?"))
    frame = t.rng.choice(frames)
    return frame.format(x=text) + ("?" if frame.startswith(words.QUESTIONS) and t.chance(0.7) else "")


def _head(t: Speaker, m: Meaning) -> str:
    head = t.calculations(m)
    head += f" {t.rng.choice(words.BY).format(g=t.names(m.groups))}" if m.groups else ""
    if m.ranked:
        first = "lowest first" if m.ascending else "highest first"
        head += f", {first}" + (f", limit {m.limit}" if m.limit else "")
    return head


def _measure(t: Speaker, m: Meaning) -> str:
    op, column = m.calculations[0]
    if op == "COUNT" or not column:
        return t.rng.choice(
            (f"number of {t.events}", f"{t.events} count", f"number of {t.events}", "count")[
                : 3 if t.names_errors else 4
            ]
        )
    shapes = tuple(shape for shape in AGGREGATES[op] if shape.split()[0] not in _SUPERLATIVES)
    return t.rng.choice(shapes).format(c=t.mention(column))


def _ranked(t: Speaker, m: Meaning) -> str:
    x, (g, gs) = _measure(t, m), t.group_names(m)
    if m.calculations[0][0] == "COUNT" and t.chance(0.4):
        shapes = words.LEAST_EVENTS if m.ascending else words.MOST_EVENTS
        n = f"{m.limit} " if m.limit else ""
        return t.rng.choice(shapes).format(n=n, gs=gs, g=g, e=t.events)
    if m.limit:
        return t.rng.choice(words.LEAST if m.ascending else words.MOST).format(n=m.limit, gs=gs, g=g, x=x)
    return t.rng.choice(words.ASCENDING if m.ascending else words.DESCENDING).format(gs=gs, g=g, x=x)


def _threshold(t: Speaker, m: Meaning) -> tuple[str, str]:
    assert m.having
    (op, column), (sign, number) = m.calculations[0], m.having
    text = f"{number:,}" if isinstance(number, int) and number >= 1000 and t.chance(0.15) else str(number)
    if column and op != "COUNT_DISTINCT" and t.chance(0.5):
        text = with_unit(t, column.kind, column.detail, number) or text
    return t.rng.choice(words.SIGNS[sign]).format(v=guard(text)), guard(text)


def _having_head(t: Speaker, m: Meaning) -> str:
    """The groups with the threshold: `routes with more than 100 requests`; its end is marked."""
    threshold, _ = _threshold(t, m)
    g, gs = t.group_names(m)
    op, column = m.calculations[0]
    if op == "COUNT":
        text = t.rng.choice(words.HAVING_EVENTS).format(gs=gs, g=g, s=threshold, e=t.events)
    elif op == "COUNT_DISTINCT" and column:
        distinct = t.rng.choice(("different", "distinct", "unique"))
        text = t.rng.choice(words.HAVING_EVENTS).format(
            gs=gs, g=g, s=threshold, e=f"{distinct} {t.mention(column, many=True)}"
        )
    else:
        text = t.rng.choice(words.HAVING).format(gs=gs, g=g, s=threshold, x=_measure(t, m))
    return text + "\x04"


def _having_tail(t: Speaker, m: Meaning) -> str:
    if not m.having:
        return ""
    threshold, _ = _threshold(t, m)
    g = t.mention(m.groups[0]) if len(m.groups) == 1 else "group"
    x = _measure(t, m)
    return t.rng.choice(words.HAVING_TAIL).format(x=x, s=threshold, g=g).replace(" ,", ",")
