"""Write a meaning as people paste it from other tools: SQL, NRQL, PromQL or a pipeline."""

import re

from examples.honeycomb.datagen.people.meaning import Clause, Meaning
from examples.honeycomb.datagen.people.ranges import amount
from examples.honeycomb.datagen.people.speaker import Speaker
from examples.honeycomb.datagen.question_builder import guard
from examples.honeycomb.datagen.sample_values import Value

_PAIRS = {
    "=": "{c}={v}",
    "!=": "{c}!={v}",
    "contains": "{c}~{v}",
    "exists": "{c}=*",
    "does-not-exist": "!{c}",
    "between": "{c}>={v} {c}<={w}",
}
_PAIRS |= {
    "does-not-contain": "{c}!~{v}",
    "in": "{c}=[{list}]",
    "not-in": "{c}!=[{list}]",
    "starts-with": "{c}={v}*",
    "ends-with": "{c}=*{v}",
}
_PAIRS |= {
    "does-not-start-with": "{c}!={v}*",
    "does-not-end-with": "{c}!=*{v}",
    ">": "{c}>{v}",
    ">=": "{c}>={v}",
    "<": "{c}<{v}",
    "<=": "{c}<={v}",
}
_SQL = {
    "=": "{c} = {v}",
    "!=": "{c} <> {v}",
    "contains": "{c} LIKE '%{r}%'",
    "does-not-contain": "{c} NOT LIKE '%{r}%'",
}
_SQL |= {"starts-with": "{c} LIKE '{r}%'", "ends-with": "{c} LIKE '%{r}'", "does-not-start-with": "{c} NOT LIKE '{r}%'"}
_SQL |= {"does-not-end-with": "{c} NOT LIKE '%{r}'", "exists": "{c} IS NOT NULL", "does-not-exist": "{c} IS NULL"}
_SQL |= {"in": "{c} IN ({list})", "not-in": "{c} NOT IN ({list})", "between": "{c} BETWEEN {v} AND {w}"}
_LABELS = {"=": '{c}="{r}"', "!=": '{c}!="{r}"', "contains": '{c}=~".*{r}.*"', "does-not-contain": '{c}!~".*{r}.*"'}
_LABELS |= {
    "starts-with": '{c}=~"{r}.*"',
    "ends-with": '{c}=~".*{r}"',
    "in": '{c}=~"{pipe}"',
    "not-in": '{c}!~"{pipe}"',
}
_LABELS |= {"exists": '{c}!=""', "does-not-exist": '{c}=""'}
_KEYWORDS = r"\b(SELECT|FROM|WHERE|GROUP BY|ORDER BY|HAVING|LIMIT|AND|OR|FACET|SINCE|TIMESERIES|DESC|ASC)\b"
_OUTSIDE_QUOTES = r"(?=[^']*(?:'[^']*'[^']*)*$)"
_REGULAR = re.compile(r"[\w ./:@-]+")


def sql(t: Speaker, m: Meaning) -> str | None:
    """`SELECT … FROM … WHERE … GROUP BY … HAVING … ORDER BY … LIMIT …`."""
    if _timed(m) or (m.any_of and any(c.op == "between" for c in m.clauses)):
        return None
    calculations = [_function(t, op, c.name if c else None, "sql") for op, c in m.calculations]
    if None in calculations:
        return None
    called = [found for found in calculations if found]
    star = called == ["COUNT(*)"] and not m.groups and t.chance(0.4)
    names = [c.name for c in m.groups]
    text = f"SELECT {'*' if star else ', '.join([*names, *called] if t.chance(0.7) else [*called, *names])}"
    text += (
        f" FROM {t.rng.choice(('events', 'requests', 'spans', 'logs', 'traces', 'dataset', 't'))}"
        if t.chance(0.9)
        else ""
    )
    text += _where(t, m)
    text += f" GROUP BY {', '.join(names)}" if names else ""
    text += f" HAVING {called[0]} {m.having[0]} {m.having[1]}" if m.having else ""
    text += f" ORDER BY {called[0]} {'ASC' if m.ascending else 'DESC'}" if m.ranked else ""
    text += f" LIMIT {m.limit}" if m.limit else ""
    return guard(_cased(t, text) + (";" if t.chance(0.2) else ""))


def nrql(t: Speaker, m: Meaning) -> str | None:
    """`SELECT … FROM … WHERE … FACET … SINCE … TIMESERIES …`."""
    called = [_function(t, op, c.name if c else None, "nrql") for op, c in m.calculations]
    odd_time = m.start or m.until_ago or m.compare
    if None in called or odd_time or m.having or m.ascending or (m.ranked and not m.limit):
        return None
    text = f"SELECT {', '.join(c for c in called if c)} FROM {t.rng.choice(('Transaction', 'Span', 'Log', 'Metric'))}"
    text += _where(t, m)
    text += f" FACET {', '.join(c.name for c in m.groups)}" if m.groups else ""
    text += f" LIMIT {m.limit}" if m.limit else ""
    text += f" SINCE {amount(m.window, t.rng, short=False)} ago" if m.window else ""
    text += f" TIMESERIES {amount(m.step, t.rng, short=False)}" if m.step else ""
    return guard(_cased(t, text) if t.chance(0.3) else text)


def promql(t: Speaker, m: Meaning) -> str | None:
    """`topk(5, avg by (route) (duration_ms{env="prod"}))`."""
    op, column = m.calculations[0]
    functions = {"COUNT": "count", "AVG": "avg", "SUM": "sum", "MAX": "max", "MIN": "min"}
    if len(m.calculations) > 1 or m.any_of or m.having or _timed(m) or (m.ranked and not m.limit):
        return None
    if not column and not m.clauses:
        return None
    if any(c.op not in _LABELS or not all(_REGULAR.fullmatch(v.text) for v in c.values) for c in m.clauses):
        return None
    quantile = re.fullmatch(r"P(\d\d)", op)
    if op not in functions and not quantile:
        return None
    labels = ", ".join(_LABELS[c.op].format(**slots(c, '"', always=True)) for c in m.clauses)
    inner = f"{column.name if column else ''}{{{labels}}}" if labels or not column else column.name
    by = f" by ({', '.join(c.name for c in m.groups)})" if m.groups else ""
    function = "quantile" if quantile else functions[op]
    arguments = f"0.{quantile[1].rstrip('0')}, {inner}" if quantile else inner
    text = f"{function}{by} ({arguments})" if by else f"{function}({arguments})"
    if m.limit:
        text = f"{'bottomk' if m.ascending else 'topk'}({m.limit}, {text})"
    return guard(text)


def pipeline(t: Speaker, m: Meaning) -> str | None:
    """`a=x b!=y | stats p95(duration_ms) by route | head 10`."""
    called = [_function(t, op, c.name if c else None, "pipe") for op, c in m.calculations]
    if None in called or m.having or _timed(m) or (m.ranked and not m.limit) or m.ascending:
        return None
    glue = " OR " if m.any_of else t.rng.choice((" ", " AND "))
    start = glue.join(_written(c, _PAIRS, '"', always=False) for c in m.clauses) or "*"
    stats = t.rng.choice(("stats", "stats", "summarize"))
    text = f"{start} | {stats} {', '.join(c for c in called if c)}"
    text += f" by {', '.join(c.name for c in m.groups)}" if m.groups else ""
    return guard(text + (f" | {t.rng.choice(('head', 'top', 'limit'))} {m.limit}" if m.limit else ""))


def _timed(m: Meaning) -> bool:
    return bool(m.window or m.step or m.start or m.compare)


def _where(t: Speaker, m: Meaning) -> str:
    if not m.clauses:
        return ""
    texts = [_written(c, _SQL, "'", always=True) for c in m.clauses]
    return " WHERE " + (" OR " if m.any_of else " AND ").join(texts)


def _written(clause: Clause, words: dict[str, str], mark: str, *, always: bool) -> str:
    pattern = words.get(clause.op, f"{{c}} {clause.op} {{v}}")
    filled = slots(clause, mark, always=always)
    if words is not _SQL and any(character in filled["r"] for character in " ,()*\"'"):
        pattern = pattern.replace("*{v}*", '*"{r}"*').replace("{v}*", '"{r}"*').replace("*{v}", '*"{r}"')
    if words is _SQL and "{r}" in pattern:
        filled["r"] = filled["r"].replace("'", "''")
    return pattern.format(**filled)


def slots(clause: Clause, mark: str, *, always: bool) -> dict[str, str]:
    """The name, and the values alone and in lists, to fill in a pattern."""
    texts = [literal(value, mark, always=always) for value in clause.values]
    raw = [value.text for value in clause.values]
    found = {"c": clause.column.name, "list": ", ".join(texts), "or": " OR ".join(texts), "pipe": "|".join(raw)}
    return found | dict(zip("vw", texts, strict=False)) | {"r": raw[0] if raw else ""}


def literal(value: Value, mark: str, *, always: bool) -> str:
    """A value, in quotation marks if it needs them or `always`."""
    if isinstance(value.value, bool):
        return "true" if value.value else "false"
    if isinstance(value.value, int | float):
        return value.text
    if (
        always
        or any(character in value.text for character in " ,;()[]'\"")
        or (":" in value.text and "}" in value.text)
    ):
        mark = '"' if "'" in value.text else "'" if '"' in value.text else mark
        return f"{mark}{value.text}{mark}"
    return value.text


def _function(t: Speaker, op: str, column: str | None, language: str) -> str | None:
    """`AVG(x)`, `percentile(x, 95)`; None for what the language does not have."""
    if op == "COUNT" or column is None:
        return "count" if language == "pipe" and t.chance(0.6) else "count(*)" if language == "nrql" else "COUNT(*)"
    if op == "COUNT_DISTINCT":
        return {"sql": f"COUNT(DISTINCT {column})", "nrql": f"uniqueCount({column})", "pipe": f"dc({column})"}[language]
    if found := re.fullmatch(r"P(\d\d)", op):
        shapes = {
            "sql": ("PERCENTILE({c}, {p})", "p{p}({c})", "APPROX_PERCENTILE({c}, 0.{q})"),
            "nrql": ("percentile({c}, {p})",),
        }
        shape = t.rng.choice(shapes.get(language, ("p{p}({c})", "perc{p}({c})")))
        return shape.format(c=column, p=found[1], q=found[1].rstrip("0"))
    names = {"AVG": "average" if language == "nrql" else "AVG", "SUM": "SUM", "MAX": "MAX", "MIN": "MIN"}
    function = names.get(op)
    return f"{function.lower() if language != 'sql' else function}({column})" if function else None


def _cased(t: Speaker, text: str) -> str:
    """The statement, in half of the cases with its keywords in lower case."""
    if t.chance(0.5):
        return text
    text = re.sub(_KEYWORDS + _OUTSIDE_QUOTES, lambda found: found[0].lower(), text)
    return re.sub(
        r"\b(COUNT|AVG|SUM|MAX|MIN|DISTINCT)\b(?=[ (])" + _OUTSIDE_QUOTES, lambda found: found[0].lower(), text
    )
