"""The kinds of questions and their weights.

A kind adds its meaning to the builder's draft and returns the sentence, or None if the dataset lacks the columns.
"""

from collections.abc import Callable
from dataclasses import dataclass

from examples.honeycomb.datagen.kinds import aggregates, counts, groups, slow, thresholds, top
from examples.honeycomb.datagen.question_builder import QuestionBuilder


@dataclass(frozen=True)
class Kind:
    """The function that generates a question, and its weight relative to other kinds."""

    ask: Callable[[QuestionBuilder], str | None]
    weight: float


KINDS = {
    "count": Kind(counts.count, 9),
    "filter": Kind(counts.events, 10),
    "errors": Kind(counts.errors, 9),
    "error rate": Kind(counts.error_rate, 3),
    "root spans": Kind(counts.root, 2),
    "statuses": Kind(counts.statuses, 5),
    "exceptions": Kind(counts.exceptions, 3),
    "called": Kind(counts.called, 2),
    "aggregate": Kind(aggregates.aggregate, 14),
    "heatmap": Kind(aggregates.heatmap, 5),
    "latency": Kind(aggregates.latency, 4),
    "rate": Kind(aggregates.rate, 2),
    "several": Kind(aggregates.several, 6),
    "distinct": Kind(groups.distinct, 5),
    "entities": Kind(groups.entities, 5),
    "list": Kind(groups.listing, 7),
    "traces": Kind(groups.traces, 3),
    "concurrency": Kind(groups.concurrency, 2),
    "top": Kind(top.by_count, 9),
    "top errors": Kind(top.by_errors, 4),
    "top statuses": Kind(top.by_status, 3),
    "top aggregate": Kind(top.by_aggregate, 6),
    "slowest": Kind(slow.slowest, 7),
    "slowest by": Kind(slow.slowest_by, 2),
    "slow events": Kind(slow.slow_events, 2),
    "having": Kind(thresholds.by_count, 3),
    "having errors": Kind(thresholds.by_errors, 2),
    "having aggregate": Kind(thresholds.by_aggregate, 3),
}
