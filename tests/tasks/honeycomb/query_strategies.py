"""Valid queries for property tests, as dicts in canonical key order.

They all obey the rules of queries and the grammar's bounds.
"""

from typing import get_args

from hypothesis import strategies as st

from tasks.honeycomb import ops

COLUMNS = ("name", "duration_ms", "it's", 'q"x', "back\\slash", "日本 é", "P99", "x,y]", "z\u200d", "a b")

columns = st.sampled_from(COLUMNS)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
integers = st.integers(-(10**15), 10**15)
floats = st.floats(-1e15, 1e15, allow_nan=False).filter(lambda x: not x.is_integer() and abs(x) > 1e-90)
scalars = st.one_of(text, st.booleans(), integers, floats)
NEITHER = {"HEATMAP"}


@st.composite
def calculations(draw):
    op = draw(st.sampled_from(ops.CALCULATION_OPS))
    return {"op": op} if op in ops.OPS_WITHOUT_COLUMN else {"op": op, "column": draw(columns)}


@st.composite
def filters(draw):
    op = draw(st.sampled_from(get_args(ops.FilterOp)))
    clause = {"column": draw(columns), "op": op}
    if op in ops.EXISTENCE_OPS:
        return clause
    if op in ops.MEMBERSHIP_OPS:
        return clause | {"value": draw(st.lists(scalars, min_size=1, max_size=4))}
    return clause | {"value": draw(text if op in ops.STRING_OPS else scalars)}


@st.composite
def orders(draw, calculated, breakdowns):
    sortable = [call for call in calculated if call["op"] not in NEITHER]
    keys = sortable + [{"column": name} for name in breakdowns]
    if not keys:
        return []
    directions = st.sampled_from(ops.DIRECTIONS)
    return [key | {"order": draw(directions)} for key in draw(st.lists(st.sampled_from(keys), max_size=3))]


@st.composite
def havings(draw, calculated):
    calls = [call for call in calculated if call["op"] not in NEITHER]
    if not calls:
        return []
    return [
        {"calculate_op": call["op"]}
        | {key: call[key] for key in call if key == "column"}
        | {"op": draw(st.sampled_from(ops.COMPARISON_OPS)), "value": draw(st.one_of(integers, floats))}
        for call in draw(st.lists(st.sampled_from(calls), max_size=2))
    ]


@st.composite
def times(draw):
    """Any two of the three times, and a granularity and offset that fit them."""
    kind = draw(st.sampled_from(["none", "range", "start", "end", "start-range", "both"]))
    span, fields = ops.DEFAULT_TIME_RANGE, {}
    if "range" in kind:
        span = fields["time_range"] = draw(st.integers(1, 10**7).filter(lambda x: x != ops.DEFAULT_TIME_RANGE))
    if kind in ("start", "start-range", "both"):
        fields["start_time"] = draw(st.integers(1, 2 * 10**9))
    if kind == "end":
        fields["end_time"] = draw(st.integers(1, 2 * 10**9))
    if kind == "both":
        span = draw(st.integers(0, 10**7))
        fields["end_time"] = fields["start_time"] + span
    if span >= ops.EMIT_STEPS and draw(st.booleans()):
        fields["granularity"] = draw(st.integers(1, span // ops.EMIT_STEPS))
    offsets = [offset for offset in ops.COMPARE_OFFSETS if offset >= span]
    if offsets and draw(st.booleans()):
        fields["compare_time_offset_seconds"] = draw(st.sampled_from(offsets))
    return fields


@st.composite
def queries(draw):
    """A canonical query as a dict."""
    calculated = draw(st.lists(calculations(), min_size=1, max_size=3))
    breakdowns = draw(st.lists(columns, max_size=3))
    query = {
        "breakdowns": breakdowns,
        "calculations": calculated,
        "filters": draw(st.lists(filters(), max_size=3)),
        "filter_combination": draw(st.sampled_from(["OR", None])),
        "orders": draw(orders(calculated, breakdowns)),
        "havings": draw(havings(calculated)),
        "limit": draw(st.one_of(st.none(), st.integers(1, ops.MAX_LIMIT))),
        **draw(times()),
    }
    return {key: value for key, value in query.items() if value not in (None, [])}
