"""Questions about slow groups, by their maximum or a percentile, and slow requests, traces and spans."""

from examples.honeycomb.datagen.implied import root_filter
from examples.honeycomb.datagen.kinds.aggregates import percentile_words
from examples.honeycomb.datagen.kinds.top import GROUPED, group, limited
from examples.honeycomb.datagen.modifiers import modifiers
from examples.honeycomb.datagen.question_builder import QuestionBuilder

_PERCENTILES = ("P50", "P75", "P90", "P95", "P95", "P99", "P99")


def slowest(t: QuestionBuilder) -> str | None:
    """`slowest endpoints` by their maximum, or `fastest` by their minimum."""
    duration = t.role("duration")
    if not duration:
        return None
    fastest = t.chance(0.07)
    t.draft.calculations.append(("MIN" if fastest else "MAX", duration.name))
    t.draft.ascending = fastest
    words = _traces_or_spans(t) if t.chance(0.3) else None
    found = None if words else group(t)
    words = words or (found[1] if found else None)
    if not words:
        return None
    trace, root = t.role("trace"), root_filter(t)
    if trace and root and t.draft.breakdowns == [trace.name]:
        t.draft.filters.append(root)
    elif not fastest and found and found[0].role == "route":
        t.draft.calculations.insert(0, ("HEATMAP", duration.name))
    n = {} if fastest else limited(t, 0.35)
    section = "fastest_frame" if fastest else f"slowest{'_n' if n else ''}_frame"
    return t.say(section, **words, **n, M=modifiers(t, GROUPED))


def _traces_or_spans(t: QuestionBuilder) -> dict[str, str] | None:
    span = t.role("span")
    if span and t.chance(0.25):
        t.draft.breakdowns.append(span.name)
        return {"nouns": "spans", "noun": "span"}
    trace = t.role("trace")
    if not trace:
        return None
    t.draft.breakdowns.append(trace.name)
    if t.chance(0.67):
        return {"nouns": "traces", "noun": "trace"}
    return {"nouns": t.mention(trace, many=True), "noun": t.mention(trace)}


def slowest_by(t: QuestionBuilder) -> str | None:
    """`slowest endpoints by p95`."""
    duration = t.role("duration")
    found = group(t)
    if not duration or not found or found[0].role == "trace":
        return None
    op = t.rng.choice(_PERCENTILES)
    t.draft.calculations.append((op, duration.name))
    n = limited(t, 0.35)
    section = f"slowest_by{'_n' if n else ''}_frame"
    return t.say(section, **found[1], **n, **percentile_words(t, op), M=modifiers(t, GROUPED))


def slow_events(t: QuestionBuilder) -> str | None:
    """`slowest requests`: the maximum, grouped by trace if there is such a column; `slow requests`: the heatmap."""
    duration = t.role("duration")
    if not duration:
        return None
    if t.event == "request" and t.chance(0.3):
        t.draft.calculations.append(("HEATMAP", duration.name))
        if root := root_filter(t):
            t.draft.filters.append(root)
        return t.say("slow_requests_frame", M=modifiers(t, GROUPED))
    t.draft.calculations.append(("MAX", duration.name))
    if trace := t.role("trace"):
        t.draft.breakdowns.append(trace.name)
    return t.say("slow_events_frame", M=modifiers(t, GROUPED))
