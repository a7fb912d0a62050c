"""Write a meaning as people type it into the search box of a log or trace viewer."""

from examples.honeycomb.datagen.people.condition_words import with_unit
from examples.honeycomb.datagen.people.meaning import Clause, Meaning
from examples.honeycomb.datagen.people.query_languages import slots
from examples.honeycomb.datagen.people.ranges import step_words, time_words
from examples.honeycomb.datagen.people.speaker import Speaker
from examples.honeycomb.datagen.question_builder import guard

Patterns = dict[str, tuple[str, ...]]

_COLON: Patterns = {
    "=": ("{c}:{v}", "{c}:{v}", "{c}:{v}", "{c}: {v}"),
    "!=": ("-{c}:{v}", "-{c}:{v}", "NOT {c}:{v}", "!{c}:{v}", "{c}:!{v}", "not {c}:{v}"),
    ">": ("{c}:>{v}", "{c}>{v}"),
    ">=": ("{c}:>={v}", "{c}>={v}"),
    "<": ("{c}:<{v}", "{c}<{v}"),
    "<=": ("{c}:<={v}", "{c}<={v}"),
    "between": ("{c}:[{v} TO {w}]", "{c}:{v}..{w}", "{c}:>={v} {c}:<={w}", "{c}>={v} {c}<={w}"),
    "contains": ("{c}:*{v}*", "{c}:*{v}*", "{c}:~{v}"),
    "does-not-contain": ("-{c}:*{v}*", "NOT {c}:*{v}*", "-{c}:~{v}"),
    "starts-with": ("{c}:{v}*",),
    "does-not-start-with": ("-{c}:{v}*", "NOT {c}:{v}*"),
    "ends-with": ("{c}:*{v}",),
    "does-not-end-with": ("-{c}:*{v}", "NOT {c}:*{v}"),
    "exists": ("has:{c}", "has:{c}", "{c}:*", "_exists_:{c}", "exists:{c}"),
    "does-not-exist": (
        *("-has:{c}", "-has:{c}", "-{c}:*", "!has:{c}", "NOT has:{c}", "missing:{c}", "no:{c}", "NOT _exists_:{c}"),
        *("-_exists_:{c}", "not has:{c}", "_missing_:{c}"),
    ),
    "in": ("{c}:({or})", "{c}:({or})", "{c}:{bare}", "{c} in ({list})", "{c}:[{list}]"),
    "not-in": ("-{c}:({or})", "NOT {c}:({or})", "-{c}:{bare}", "{c} not in ({list})"),
}
_PAIRS: Patterns = {
    "=": ("{c}={v}", "{c}={v}", "{c}={v}", "{c}=={v}"),
    "!=": ("{c}!={v}", "{c}!={v}", "{c}<>{v}", "NOT {c}={v}", "!{c}={v}", "-{c}={v}"),
    ">": ("{c}>{v}",),
    ">=": ("{c}>={v}",),
    "<": ("{c}<{v}",),
    "<=": ("{c}<={v}",),
    "between": ("{c}>={v} {c}<={w}", "{c}={v}..{w}"),
    "contains": ("{c}~{v}", "{c}=~{v}", "{c}=*{v}*"),
    "does-not-contain": ("{c}!~{v}", "{c}!=*{v}*"),
    "starts-with": ("{c}={v}*", "{c}^={v}"),
    "does-not-start-with": ("{c}!={v}*",),
    "ends-with": ("{c}=*{v}", "{c}$={v}"),
    "does-not-end-with": ("{c}!=*{v}",),
    "exists": ("{c}=*", "{c}!=null", "has:{c}", "exists({c})", "{c}!=nil"),
    "does-not-exist": ("!{c}", "{c}=null", "-has:{c}", "{c}==null", "!exists({c})", "{c}!=*"),
    "in": ("{c}=[{list}]", "{c}=({or})", "{c} in ({list})", "{c}={bare}", "{c}={pipe}"),
    "not-in": ("{c}!=[{list}]", "{c} not in ({list})", "{c}!=({or})"),
}
_SPACED: Patterns = {
    "=": ("{c} = {v}", "{c} = {v}", "{c} == {v}", "{c} is {v}"),
    "!=": ("{c} != {v}", "{c} != {v}", "{c} <> {v}", "{c} is not {v}", "not {c} = {v}"),
    ">": ("{c} > {v}", "{c} gt {v}"),
    ">=": ("{c} >= {v}", "{c} gte {v}"),
    "<": ("{c} < {v}", "{c} lt {v}"),
    "<=": ("{c} <= {v}", "{c} lte {v}"),
    "between": ("{c} between {v} and {w}", "{c} >= {v} and {c} <= {w}"),
    "contains": ("{c} contains {v}", "{c} contains {v}", "{c} like %{r}%", "{c} ~ {v}", "{c} CONTAINS {v}"),
    "does-not-contain": ("{c} does-not-contain {v}", "{c} not contains {v}", "{c} !contains {v}", "{c} not like %{r}%"),
    "starts-with": ("{c} starts-with {v}", "{c} starts with {v}", "{c} startswith {v}", "{c} like {r}%"),
    "does-not-start-with": ("{c} does-not-start-with {v}", "{c} not startswith {v}", "{c} !starts-with {v}"),
    "ends-with": ("{c} ends-with {v}", "{c} ends with {v}", "{c} endswith {v}", "{c} like %{r}"),
    "does-not-end-with": ("{c} does-not-end-with {v}", "{c} not endswith {v}", "{c} !ends-with {v}"),
    "exists": (
        "{c} exists",
        "{c} exists",
        "{c} is not null",
        "{c} != null",
        "{c} is set",
        "{c} IS NOT NULL",
        "has {c}",
    ),
    "does-not-exist": (
        *("{c} does-not-exist", "{c} is null", "{c} = null", "{c} is empty", "{c} not exists", "{c} == null"),
        *("{c} IS NULL", "{c} is not set", "{c} !exists", "{c} is missing"),
    ),
    "in": ("{c} in ({list})", "{c} in ({list})", "{c} IN ({list})", "{c} in [{list}]", "{c} in {list}"),
    "not-in": ("{c} not in ({list})", "{c} not in ({list})", "{c} NOT IN ({list})", "{c} not in [{list}]"),
}
_STYLES = ((_COLON, 44), (_PAIRS, 28), (_SPACED, 28))
_AWKWARD = " ,()*\"'%"


def search_box(t: Speaker, m: Meaning) -> str | None:
    """`key:value -key:value key>=4096 "quoted text"`, perhaps with a calculation, groups and a time."""
    if not m.clauses or m.having or (m.ranked and not m.limit) or m.ascending or len(m.calculations) > 1:
        return None
    style = t.rng.choices([style for style, _ in _STYLES], [weight for _, weight in _STYLES])[0]
    mark, always = '"' if t.chance(0.75) else "'", t.chance(0.15)
    texts = []
    for asked in m.clauses:
        own = style if t.chance(0.85) else t.rng.choice((_COLON, _PAIRS))
        text = None if m.any_of else _free_text(t, asked)
        texts.append(text or written(t, asked, own, mark, always=always))
    spaced = style is _SPACED or any(" in " in text or " between " in text for text in texts)
    joins = (" and ", " and ", " AND ", " && ") if spaced else (" ", " ", " ", " AND ", " and ", ", ")
    text = (t.rng.choice((" OR ", " or ", " OR ", " || ")) if m.any_of else t.rng.choice(joins)).join(texts)
    op, column = m.calculations[0]
    calculation = f"{op.lower()}({column.name})" if column else t.rng.choice(("count", "count()"))
    names = ", ".join(c.name for c in m.groups)
    if column or (m.groups and t.chance(0.25)):
        text = t.rng.choice((f"{calculation} {text}", f"{text} | {calculation}", f"{calculation} where {text}"))
        text += t.rng.choice((" by ", " group by ")) + names if m.groups else ""
    elif m.groups:
        text += t.rng.choice((" by ", " by ", " group by ", " grouped by ", " per ", " | by ", " groupby:")) + names
    text = guard(text) + (t.rng.choice((" top {}", " limit {}", " limit:{}")).format(m.limit) if m.limit else "")
    when = time_words(t.rng, m)
    step = step_words(t.rng, m.step) if m.step else ""
    return " ".join(part for part in (text, when, step) if part)


def written(t: Speaker, clause: Clause, style: Patterns, mark: str, *, always: bool) -> str:
    """One condition in this style."""
    filled = slots(clause, mark, always=always)
    filled["bare"] = ",".join(value.text for value in clause.values)
    column = clause.column
    if clause.op in {">", ">=", "<", "<=", "between"} and t.chance(0.25):
        for slot, value in zip("vw", clause.values, strict=False):
            assert isinstance(value.value, int | float)
            text = with_unit(t, column.kind, column.detail, value.value)
            filled[slot] = text.replace(" ", "") if text else filled[slot]
    awkward = any(set(_AWKWARD) & set(value.text) for value in clause.values)
    plain = [p for p in style[clause.op] if not awkward or not {"bare", "pipe"} & {p[-5:-1]}]
    pattern = t.rng.choice([p for p in plain if "%" not in p or not awkward] or list(style[clause.op]))
    if awkward:
        pattern = pattern.replace("*{v}*", '*"{r}"*').replace("{v}*", '"{r}"*').replace("*{v}", '*"{r}"')
    return pattern.format(**filled)


def _free_text(t: Speaker, clause: Clause) -> str | None:
    """`"no space left"` alone, if only one column has free text; None otherwise."""
    prose = [c for c in t.columns.columns if c.kind == "text" and c.detail == "sentence"]
    alone = prose == [clause.column] and clause.op in {"contains", "does-not-contain"}
    if not alone or t.chance(0.35) or '"' in clause.values[0].text:
        return None
    return ("-" if clause.op == "does-not-contain" else "") + f'"{clause.values[0].text}"'
