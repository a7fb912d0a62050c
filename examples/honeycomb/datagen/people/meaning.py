"""What a question asks, before any words: calculations, groups, conditions, order, threshold and time."""

from dataclasses import dataclass

from examples.honeycomb.datagen.column_set import Column
from examples.honeycomb.datagen.query_draft import Calculation, Draft, Filter
from examples.honeycomb.datagen.sample_values import Value


@dataclass(frozen=True)
class Clause:
    """One condition on one column; `between` has two values."""

    column: Column
    op: str
    values: tuple[Value, ...] = ()

    def filters(self) -> list[Filter]:
        """The filters of a query."""
        name, values = self.column.name, [v.value for v in self.values]
        if self.op == "between":
            return [Filter(name, ">=", values[0]), Filter(name, "<=", values[1])]
        if self.op in {"in", "not-in"}:
            return [Filter(name, self.op, values)]
        return [Filter(name, self.op, values[0] if values else None)]


@dataclass(frozen=True)
class Meaning:
    """All that one question asks; times are in seconds.

    `ranked` tells that the words ask for an order of the groups. `start` and `end` are Unix times. `until_ago` is the
    nearer end of "between 2 and 4 hours ago", of which `window` is the farther one.
    """

    calculations: tuple[tuple[str, Column | None], ...] = (("COUNT", None),)
    groups: tuple[Column, ...] = ()
    clauses: tuple[Clause, ...] = ()
    any_of: bool = False
    having: tuple[str, float] | None = None
    ranked: bool = False
    ascending: bool = False
    limit: int | None = None
    window: int | None = None
    step: int | None = None
    start: int | None = None
    end: int | None = None
    until_ago: int | None = None
    compare: int | None = None

    def draft(self) -> Draft:
        """The meaning as a query draft."""
        calculations: list[Calculation] = [(op, column.name if column else None) for op, column in self.calculations]
        draft = Draft(calculations=calculations, breakdowns=[c.name for c in self.groups], any_filter=self.any_of)
        draft.filters = [found for clause in self.clauses for found in clause.filters()]
        draft.ascending, draft.limit = self.ascending, self.limit
        if self.having:
            draft.havings = [(*calculations[0], *self.having)]
        draft.times = {"time_range": self.window} if self.window else {}
        draft.times |= {"granularity": self.step} if self.step else {}
        draft.times |= {"start_time": self.start} if self.start else {}
        draft.times |= {"end_time": self.end} if self.end else {}
        draft.times |= {"compare_time_offset_seconds": self.compare} if self.compare else {}
        time = self.window or self.start
        present = {"breakdown": self.groups, "or": self.any_of, "limit": self.limit, "time": time}
        present |= {"compare": self.compare}
        present |= {"order": self.ranked, "granularity": self.step}
        draft.features = {name for name, value in present.items() if value}
        return draft
