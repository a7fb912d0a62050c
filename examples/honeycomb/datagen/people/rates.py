"""Write questions about rates: events per unit of time, error rates, and rates of change."""

from dataclasses import replace

from examples.honeycomb.datagen.people.condition_words import conditions
from examples.honeycomb.datagen.people.meaning import Meaning
from examples.honeycomb.datagen.people.question_kinds import KINDS
from examples.honeycomb.datagen.people.ranges import window_words
from examples.honeycomb.datagen.people.sampling import sample_meaning
from examples.honeycomb.datagen.people.sentence_words import BY
from examples.honeycomb.datagen.people.speaker import Speaker

_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
_LETTERS = {"second": ("s", "sec"), "minute": ("m", "min"), "hour": ("h", "hr"), "day": ("d", "day")}
_PER = (
    *("{e} per {u}", "{e} per {u}", "{e}/{l}", "how many {e} per {u}", "number of {e} per {u}", "{e} each {u}"),
    *("{e} a {u}", "per-{u} {e}", "{e} count per {u}", "rate of {e} per {u}", "how many {e} do we get per {u}"),
)
_SPEED = (
    *("{o} rate", "throughput", "rate of {e}", "{o} throughput", "the rate of {e}", "what is our {o} rate"),
    *("throughput in {e} per second", "{o}s per second", "what's the throughput"),
)
_ERROR_RATE = (
    *("error rate", "failure rate", "what's the error rate", "error ratio", "share of failures", "rate of failure"),
    *("how high is the error rate", "percentage of errors", "errors vs successes", "success rate"),
)
_CHANGE = {
    "RATE_AVG": ("rate of change of {c}", "how fast does {c} change", "{c} rate of change", "change rate of {c}"),
    "RATE_SUM": ("rate of change of total {c}", "how fast does total {c} grow", "rate of change of the sum of {c}"),
    "RATE_MAX": ("rate of change of max {c}", "how fast does the highest {c} change", "rate of change of the peak {c}"),
}
_SHORTEST = {"second": (300, 600, 900), "minute": (None, None, 3600, 1800, 10_800, 21_600)}
_SHORTEST |= {"hour": (86_400, 86_400, 172_800, 604_800), "day": (1_209_600, 2_592_000, 1_209_600)}


def rate(t: Speaker, sampled: Meaning) -> tuple[str, Meaning] | None:
    """A question about a rate, by the conventions of docs/data.md, with the groups and conditions sampled."""
    m = Meaning(groups=sampled.groups, clauses=sampled.clauses)
    roll = t.rng.random()
    if roll < 0.5:
        head, m = _per_unit(t, m)
    elif roll < 0.66:
        head = t.rng.choice(_SPEED).format(o=t.event, e=t.events)
    elif roll < 0.84:
        flag = t.role("error")
        if not flag or flag.name in {c.column.name for c in m.clauses} | {c.name for c in m.groups}:
            return None
        head, group = t.rng.choice(_ERROR_RATE), m.groups
        m = replace(m, groups=(*group, flag), clauses=m.clauses)
        by = f" {t.rng.choice(BY).format(g=t.names(group))}" if group else ""
        return _finish(t, head + by, m, m)
    else:
        numeric = [c for c in t.columns.columns if c.numeric and c.kind in {"count", "bytes", "num", "pct"}]
        if not numeric:
            return None
        op, column = t.rng.choice(("RATE_AVG", "RATE_AVG", "RATE_SUM", "RATE_MAX")), t.rng.choice(numeric)
        if column.name in {c.column.name for c in m.clauses} or (
            op == "RATE_SUM" and column.kind not in {"count", "bytes"}
        ):
            return None
        head, m = t.rng.choice(_CHANGE[op]).format(c=t.mention(column)), replace(m, calculations=((op, column),))
    by = f" {t.rng.choice(BY).format(g=t.names(m.groups))}" if m.groups else ""
    return _finish(t, head + by, m, replace(m, clauses=sampled.clauses))


def sampled_for_rate(t: Speaker) -> Meaning:
    """Groups and conditions for a rate: seldom more than one."""
    kind = replace(KINDS["rate"], calculations=(1, 0, 0), groups=0.3, ranked=0.0, timed=0.0, conditions=(62, 34, 4, 0))
    return replace(sample_meaning(t.rng, t.columns, kind), any_of=False)


def _per_unit(t: Speaker, m: Meaning) -> tuple[str, Meaning]:
    """Counts in steps of the unit, with a time range of at least ten of them."""
    m = t.say_errors(m)
    unit = t.rng.choices(("second", "minute", "hour", "day"), (25, 45, 20, 10))[0]
    window = t.rng.choice(_SHORTEST[unit])
    if unit != "second" or t.chance(0.4):  # without a range, a point every second is too many
        m = replace(m, window=window, step=_UNITS[unit])
    shape = t.rng.choice(_PER)
    return shape.format(e=t.events, u=unit, l=t.rng.choice(_LETTERS[unit])), m


def _finish(t: Speaker, head: str, m: Meaning, asked: Meaning) -> tuple[str, Meaning]:
    """The sentence; `m` has the conditions that are still to be said, and `asked` has all."""
    window = m.window or (t.rng.choice((3600, 86_400, 604_800)) if t.chance(0.15) and not m.step else None)
    parts = [head, conditions(t, m), window_words(t.rng, window) if window else ""]
    front = (
        t.rng.choice(("", "", "", "show ", "show me ", "plot ", "I want "))
        if not head.startswith(("how", "what"))
        else ""
    )
    return front + " ".join(part for part in parts if part), replace(asked, window=window)
