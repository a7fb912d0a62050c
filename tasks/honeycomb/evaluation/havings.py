"""Changes events so that each having keeps some groups and drops some.

The results of groups are moved to, just below and just above the threshold; otherwise `COUNT > 10000` would drop all
groups of any query. Counts are set by the events' sample rates, sums and percentiles by scaling a column, and distinct
counts by renumbering. CONCURRENCY depends only on times and is not changed.
"""

from __future__ import annotations

import duckdb

from tasks.honeycomb.clauses import Calculation, Having
from tasks.honeycomb.evaluation import sql
from tasks.honeycomb.evaluation.sql import Column, Columns, Kind, Span
from tasks.honeycomb.query_type import Query

FACTORS = [1.0, 0.96, 1.04, 0.7, 1.6, 0.2, 4.0, 0.98, 1.02]


def calibrate_havings(connection: duckdb.DuckDBPyConnection, query: Query, columns: Columns, span: Span) -> None:
    """Change the table `events` for the havings of one query."""
    keys = [columns[name].alias for name in query.breakdowns]
    condition = sql.where(query, columns, span)
    same_group = [f"{key} IS NOT DISTINCT FROM k{i}" for i, key in enumerate(keys)]
    matched = " AND ".join([f"({condition})", *same_group])
    for having in query.havings:
        calculation = Calculation(op=having.calculate_op, column=having.column)
        result = sql.aggregate(calculation, columns, span)
        connection.execute(_group_table(having, keys, result, condition))
        for statement in _updates(having, columns, matched):
            connection.execute(statement)


def _group_table(having: Having, keys: list[str], result: str, condition: str) -> str:
    """SQL of the table targets(k0…, result, members, target): the present and the intended result of each group."""
    named = [f"{key} AS k{i}" for i, key in enumerate(keys)]
    selected = ", ".join([*named, f"{result} AS result", "count(*) AS members"])
    grouped = f"GROUP BY {', '.join(keys)}" if keys else ""
    order = ", ".join([*(f"k{i}" for i in range(len(keys))), "result"])
    number = f"CAST(row_number() OVER (ORDER BY {order}) - 1 AS INTEGER)"
    # Without the casts DuckDB would use decimals, which overflow.
    target = f"{float(having.value)}::DOUBLE * list_extract({FACTORS}::DOUBLE[], {number} % {len(FACTORS)} + 1)"
    if having.calculate_op in ("COUNT", "COUNT_DISTINCT"):
        # Counts are integers: include the neighbours of the threshold.
        near = f"WHEN 1 THEN {having.value} + 1 WHEN 2 THEN {having.value} - 1"
        target = f"round(CASE {number} % 4 {near} ELSE {target} END)"
    return (
        f"CREATE OR REPLACE TEMP TABLE targets AS SELECT *, greatest({target}, 0) AS target FROM "
        f"(SELECT {selected} FROM events WHERE {condition} {grouped})"
    )


def _updates(having: Having, columns: Columns, matched: str) -> list[str]:
    if having.calculate_op == "COUNT":
        quotient = "floor(target / members)"
        # The remainder is added to one event of the group, so that its count is exactly the target.
        rest = f"SELECT min(events.rowid) AS first, any_value(target - members * {quotient}) AS rest"
        return [
            f"UPDATE events SET weight = {quotient} FROM targets WHERE {matched}",
            f"UPDATE events SET weight = weight + rest FROM ({rest} FROM events, targets WHERE {matched} "
            f"GROUP BY targets.rowid) AS one WHERE events.rowid = one.first",
        ]
    column = columns[having.column] if having.column is not None else None
    if column is None or column.kind is Kind.BOOLEAN:
        return []
    if having.calculate_op == "COUNT_DISTINCT":
        return [_renumber(column, matched)]
    scaled = f"CASE WHEN result <> 0 THEN {column.alias} * target / result ELSE {column.alias} END"
    return [f"UPDATE events SET {column.alias} = {scaled} FROM targets WHERE {matched}"]


def _renumber(column: Column, matched: str) -> str:
    """SQL that gives each group the number of distinct values of its target."""
    name = column.alias
    number = "(row_number() OVER (PARTITION BY targets.rowid ORDER BY events.rowid) - 1) % greatest(target, 1)"
    value = f"CAST({number} AS BIGINT)"
    new = value if column.kind is Kind.NUMBER else f"concat('v', {value})"
    numbered = f"SELECT events.rowid AS place, {new} AS new FROM events, targets WHERE {matched} AND {name} IS NOT NULL"
    return f"UPDATE events SET {name} = new FROM ({numbered}) AS numbered WHERE events.rowid = place"
