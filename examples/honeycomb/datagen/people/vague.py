"""Write questions that name no column: what is slow, fails, is retried, falls behind, and everything at once."""

from dataclasses import replace

from examples.honeycomb.datagen.column_set import Column
from examples.honeycomb.datagen.people import vague_words as words
from examples.honeycomb.datagen.people.meaning import Clause, Meaning
from examples.honeycomb.datagen.people.moments import with_time
from examples.honeycomb.datagen.people.ranges import step_words, time_words
from examples.honeycomb.datagen.people.speaker import Speaker
from examples.honeycomb.datagen.people.value_shapes import shaped_value
from examples.honeycomb.datagen.sample_values import Value
from examples.honeycomb.datagen.words import split_words

_KINDS = {"slow": 40, "failing": 30, "all": 12, "retrying": 6, "behind": 4, "marked": 8}
_ACTORS = frozenset({"service", "route", "name"})
_ACTOR_WORDS = frozenset({"class", "queue", "topic", "job", "task", "operation", "function", "dag", "view", "app"})
_ACTOR_WORDS |= {"controller", "screen", "pipeline", "model", "group", "tool", "deployment", "container", "workspace"}
_RETRIES, _ATTEMPTS = frozenset({"retries", "retry"}), frozenset({"attempts", "attempt", "try", "tries", "receive"})
_BACKLOGS = frozenset({"lag", "backlog", "depth", "pending", "wait", "delay", "drift"})
_NOT_MARKS = frozenset({"live", "mfa", "success", "replica", "delivered", "settled"})

Asked = tuple[str, Meaning] | None


def vague(t: Speaker) -> Asked:
    """A question by the conventions of docs/data.md; None if columns are missing."""
    kind = t.rng.choices(list(_KINDS), list(_KINDS.values()))[0]
    makers = {"slow": _slow, "failing": _failing, "all": _all, "retrying": _retrying, "behind": _behind}
    found = makers.get(kind, _marked)(t)
    if found is None:
        return None
    text, meaning = found
    if t.chance(0.3):
        meaning = with_time(t.rng, meaning)
        text += f" {time_words(t.rng, meaning)}".rstrip()
        text += f" {step_words(t.rng, meaning.step)}" if meaning.step else ""
    return text.rstrip("?") + t.rng.choice(("", "", "?")), meaning


def _slow(t: Speaker) -> Asked:
    column = t.role("duration")
    if not column:
        return None
    if t.chance(0.45) and (group := _group(t, {column.name})):
        shown = (("HEATMAP", column),) if group.role == "route" else ()
        return _by(t, words.SLOW_BY, group, Meaning(calculations=(*shown, ("MAX", column)), ranked=True))
    return _about(t, words.SLUGGISH, words.SLUGGISH_FOR, Meaning(calculations=(("HEATMAP", column),)))


def _failing(t: Speaker) -> Asked:
    failed = _failed(t)
    if not failed:
        return None
    if t.chance(0.45) and (group := _group(t, {failed.column.name})):
        if group.role == "route" and (status := t.role("status")):
            failed = Clause(status, ">", (Value(400, "400"),))
        return _by(t, words.FAILING_BY, group, Meaning(clauses=(failed,)))
    return _about(t, words.FAILING, words.FAILING_FOR, Meaning(clauses=(failed,)))


def _all(t: Speaker) -> Asked:
    if t.chance(0.25) and (group := _group(t, set())):
        return _by(t, words.ALL_BY, group, Meaning())
    return _about(t, words.ALL, words.ALL_FOR, Meaning())


def _retrying(t: Speaker) -> Asked:
    """More than no retry, or more than one attempt."""
    for marks, least in ((_RETRIES, 0), (_ATTEMPTS, 1)):
        found = [c for c in t.columns.columns if c.numeric and marks & set(split_words(c.name)) and not c.exact_only]
        found = [c for c in found if c.kind in {"count", "num"} and "limit" not in c.name]
        if len(found) == 1:
            meaning = Meaning(clauses=(Clause(found[0], ">", (Value(least, str(least)),)),))
            if t.chance(0.6) and (group := _group(t, {found[0].name})):
                return _by(t, words.RETRYING_BY, group, meaning)
            return t.rng.choice(words.RETRYING).format(e=t.events), meaning
    return None


def _behind(t: Speaker) -> Asked:
    found = [c for c in t.columns.columns if c.numeric and _BACKLOGS & _all_words(c) and not c.exact_only]
    column = t.rng.choice(found) if found else None
    group = _group(t, {column.name}) if column else None
    if not column or not group:
        return None
    slots = {"c": t.mention(column), "g": t.mention(group), "gs": t.mention(group, many=True)}
    meaning = Meaning(calculations=(("MAX", column),), groups=(group,), ranked=True)
    return t.rng.choice(words.BEHIND_BY).format(**slots), meaning


def _marked(t: Speaker) -> Asked:
    """`rate limited requests` for a flag; only flags whose name is said like an adjective."""
    flags = [c for c in t.columns.columns if c.kind == "flag" and c.role is None and not c.exact_only]
    flags = [c for c in flags if c.name not in _NOT_MARKS and _adjective(t, c)]
    if not flags:
        return None
    flag = t.rng.choice(flags)
    meaning, said = Meaning(clauses=(Clause(flag, "=", (Value(True, ""),)),)), _adjective(t, flag)
    if t.chance(0.4) and (group := _group(t, {flag.name})):
        slots = {"g": t.mention(group), "gs": t.mention(group, many=True), "w": said, "e": t.events}
        return t.rng.choice(words.MARKED_BY).format(**slots), replace(meaning, groups=(group,))
    return t.rng.choice(words.MARKED).format(w=said, e=t.events), meaning


def _adjective(t: Speaker, flag: Column) -> str | None:
    said = " ".join(split_words(flag.name))
    fits = said.endswith(("ed", "out", "flaky", "hit")) and t.columns.resolve(said) == flag.name
    return said if fits and not said.endswith("hit") else None


def _by(t: Speaker, shapes: tuple[str, ...], group: Column, meaning: Meaning) -> Asked:
    slots = {"g": t.mention(group), "gs": t.mention(group, many=True), "e": t.events}
    return t.rng.choice(shapes).format(**slots), replace(meaning, groups=(group,))


def _about(t: Speaker, everywhere: tuple[str, ...], there: tuple[str, ...], meaning: Meaning) -> Asked:
    """The question about everything, or about one value of a column that tells who does the work."""
    places = [c for c in t.columns.columns if c.role in _ACTORS or _is_actor(c)]
    if not places or t.chance(0.42):
        return t.rng.choice(everywhere).format(e=t.events), meaning
    place = t.rng.choice(places)
    value, named = shaped_value(t.rng, place), ""
    if place.role not in {"service", "route"} and t.chance(0.5):
        named = t.mention(place, exact_share=0.3)
    if not named and not set(value.text) & set("-_/.:") and place.role != "service" and value.text.islower():
        return t.rng.choice(everywhere).format(e=t.events), meaning  # "is free slow": no one knows what it is
    said = t.quote(value)
    said = t.rng.choice((f"{named} {said}", f"the {said} {named}")) if named else said
    at = Clause(place, "=", (value,))
    return t.rng.choice(there).format(v=said, e=t.events), replace(meaning, clauses=(*meaning.clauses, at))


def _failed(t: Speaker) -> Clause | None:
    if flag := t.role("error"):
        return Clause(flag, "=", (Value(True, ""),))
    status = t.role("status")
    return Clause(status, ">=", (Value(500, "500"),)) if status else None


def _group(t: Speaker, used: set[str]) -> Column | None:
    columns = [
        c for c in t.columns.columns if c.name not in used and c.kind in {"enum", "service", "path", "host", "id"}
    ]
    actors = [c for c in columns if c.role in _ACTORS or _is_actor(c) or _is_pod(c)]
    others = [c for c in columns if c.kind in {"enum", "service", "path"}]
    pool = actors if actors and t.chance(0.65) else others
    return t.rng.choice(pool) if pool else None


def _all_words(column: Column) -> set[str]:
    return {word for phrase in (column.name, *column.synonyms) for word in split_words(phrase)}


def _is_actor(column: Column) -> bool:
    said = _all_words(column)
    fits = column.kind in {"enum", "service"} and not column.exact_only and not said & {"error", "exception", "reason"}
    return fits and bool(_ACTOR_WORDS & said)


def _is_pod(column: Column) -> bool:
    return column.kind == "id" and column.detail == "pod" and not column.exact_only
