"""Say the conditions of a meaning in words; names and values are guarded."""

from examples.honeycomb.datagen.people.meaning import Clause, Meaning
from examples.honeycomb.datagen.people.operator_words import NOUN, PHRASE, VERB
from examples.honeycomb.datagen.people.speaker import Speaker
from examples.honeycomb.datagen.question_builder import guard
from examples.honeycomb.datagen.sample_values import Value

_COMPARED = frozenset({">", ">=", "<", "<=", "between"})
_MS_PER, _BYTES_PER = {"us": 0.001, "ms": 1, "s": 1000}, {"b": 1, "kb": 1000, "mb": 1_000_000}
# "with retries" and "no retries" of a number could mean more than 0 and 0, so only these words ask whether it is there.
_CERTAIN = ("null", "missing", "present", "absent", "set", "exist", "value", "empty", "recorded", "populated", "blank")


def conditions(t: Speaker, m: Meaning) -> str:
    """All conditions, with the words that introduce them; empty if there are none."""
    if not m.clauses:
        return ""
    join = (" or ", " or ", " OR ") if m.any_of else (" and ", " and ", " & ", " and " if has_commas(m) else ", ")
    if t.chance(0.4) and (len(m.clauses) == 1 or not m.any_of):
        return t.rng.choice((*join[:2], " ") if not m.any_of else join).join(phrase(t, c) for c in m.clauses)
    verb = t.chance(0.65)
    leads = ("where", "where", "where", "when", "for which", "only where", "if", "in which", "filter", "filtered to")
    lead = t.rng.choice(leads if verb else ("with", "with", "that have", "having", "with"))
    return f"{lead} " + t.rng.choice(join).join(condition(t, c, verb=verb) for c in m.clauses)


def condition(t: Speaker, clause: Clause, *, verb: bool) -> str:
    """One condition without an introducing word: `env is prod`, or without a verb: `env prod`."""
    return _worded(t, clause, VERB if verb else NOUN)


def phrase(t: Speaker, clause: Clause) -> str:
    """One condition with its own introducing word: `without a session id`, `for env prod`."""
    if clause.column.numeric and clause.op in {"exists", "does-not-exist"}:
        return f"where {condition(t, clause, verb=True)}"
    return _worded(t, clause, PHRASE)


def has_commas(m: Meaning) -> bool:
    """Whether commas between conditions could be taken for those between values."""
    return any(len(c.values) > 1 or any("," in value.text for value in c.values) for c in m.clauses)


def _worded(t: Speaker, clause: Clause, words: dict[str, tuple[str, ...]]) -> str:
    key = clause.op
    if clause.column.kind == "flag" and clause.op == "=":
        key = "true" if clause.values[0].value else "false"
    texts = [value_words(t, clause, value) for value in clause.values]
    plain = [guard(value.text) for value in clause.values]
    if clause.op == "between" and sum(a == b for a, b in zip(texts, plain, strict=True)) == 1:
        texts = plain  # "between 250 and 30s" has no clear meaning
    slots = {"c": t.mention(clause.column), "list": ", ".join(texts)}
    if len(texts) > 1:
        slots |= {"or": t.join(texts, "or"), "nor": t.join(texts, "nor"), "and": t.join(texts, "and")}
    slots |= dict(zip("vw", texts, strict=False))
    options = words[key]
    if clause.column.numeric and not clause.values:
        options = tuple(o for o in options if any(word in o for word in _CERTAIN))
    if not clause.column.numeric or clause.column.kind in {"dur", "bytes"} or clause.op not in _COMPARED:
        options = tuple(o for o in options if not o.endswith("{v} {c}"))
    if not clause.column.numeric or clause.column.kind != "dur":
        options = tuple(o for o in options if "took" not in o)
    return t.rng.choice(options).format(**slots)


def value_words(t: Speaker, clause: Clause, value: Value) -> str:
    """The text of a value: numbers perhaps with a unit, other values as they are or in quotes."""
    kind, number = clause.column.kind, value.value
    if clause.column.numeric and isinstance(number, int | float):
        if clause.op in _COMPARED and t.chance(0.5) and (text := with_unit(t, kind, clause.column.detail, number)):
            return guard(text)
        return guard(value.text + ("%" if kind == "pct" and t.chance(0.3) else ""))
    if (clause.op in {"contains", "does-not-contain"} and t.chance(0.3)) or set(value.text) & set(" ,;()'\""):
        mark = "'" if "'" not in value.text and t.chance(0.4) else '"'
        return guard(f"{mark}{value.text}{mark}")
    return t.quote(value)


def with_unit(t: Speaker, kind: str, unit: str, number: float) -> str | None:
    """`2s` for 2000 in a column of milliseconds, `1.5 MB` for bytes; None if the kind has no units."""
    if kind == "dur" and (unit or "ms") in _MS_PER:
        ms = number * _MS_PER[unit or "ms"]
        if ms >= 60_000 and ms % 60_000 == 0 and t.chance(0.6):
            return f"{ms / 60_000:g}{t.rng.choice((' min', ' minutes', 'min', 'm'))}"
        if ms >= 1000 and t.chance(0.85):
            return f"{ms / 1000:g}{t.rng.choice(('s', 's', ' s', ' seconds', ' sec', ' secs'))}"
        return f"{ms:g}{t.rng.choice(('ms', 'ms', ' ms', ' milliseconds', ' millis'))}" if ms >= 1 else None
    if kind == "bytes" and (unit or "b") in _BYTES_PER:
        size = number * _BYTES_PER[unit or "b"]
        for name, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 1000)):
            if size >= factor and size % (factor / 10) == 0:
                return f"{size / factor:g}{t.rng.choice(('', ' '))}{t.rng.choice((name, name, name.lower()))}"
    return None
