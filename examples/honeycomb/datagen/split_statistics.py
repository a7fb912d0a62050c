"""Count the contents of a split."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from examples.honeycomb.datagen.example_questions import Example


@dataclass
class Statistics:
    """Running totals over examples."""

    categories: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)
    sets: set[str] = field(default_factory=set)
    vocabularies: set[str] = field(default_factory=set)
    templates: set[str] = field(default_factory=set)
    columns: list[int] = field(default_factory=list)
    characters: list[int] = field(default_factory=list)

    def add(self, example: Example) -> None:
        """Count one example."""
        self.categories[example.category] += 1
        self.features.update(example.features)
        self.sets.add(example.column_set)
        self.vocabularies.update(example.vocabularies)
        self.templates.update(example.templates)
        self.columns.append(len(example.cols))
        self.characters.append(len(example.nlq))

    def summary(self) -> dict[str, Any]:
        """The counts as in `statistics.json`."""
        return {
            "examples": len(self.columns),
            "column_sets": len(self.sets),
            "vocabularies": sorted(self.vocabularies),
            "templates": len(self.templates),
            "categories": dict(sorted(self.categories.items())),
            "features": dict(sorted(self.features.items())),
            "columns": _spread(self.columns),
            "question_characters": _spread(self.characters),
        }


def _spread(values: list[int]) -> dict[str, float]:
    ordered = sorted(values)
    at = {f"p{share}": ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (1, 50, 90, 99)}
    return {"mean": round(sum(ordered) / len(ordered), 1), **at, "max": ordered[-1]}
