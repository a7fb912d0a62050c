"""Build the words of one question of `people`: how exactly it names columns, and what it calls the events."""

from random import Random

from examples.honeycomb.datagen.column_set import Column, ColumnSet
from examples.honeycomb.datagen.people.meaning import Meaning
from examples.honeycomb.datagen.people.operator_words import AGGREGATES
from examples.honeycomb.datagen.phrasebook import Phrasebook, Style
from examples.honeycomb.datagen.question_builder import QuestionBuilder
from examples.honeycomb.datagen.words import plural

_COUNT = (
    *("count", "number of {e}", "{e}", "{e}", "count of {e}", "how many {e}", "event count", "total number of {e}"),
    *("{e} count", "how many {e}", "volume of {e}", "total {e}", "amount of {e}", "# of {e}", "{e}"),
)
_ERRORS = ("errors", "errors", "failures", "failed {e}")


class Speaker(QuestionBuilder):
    """A question builder in which one question names all its columns about equally exactly."""

    def __init__(self, rng: Random, columns: ColumnSet, exactness: float) -> None:
        super().__init__(rng, columns, Phrasebook(rng, Style.TRAINING))
        self.exactness = exactness
        self.events = plural(self.event)

    def mention(self, column: Column, *, many: bool = False, exact_share: float | None = None) -> str:
        """Words for a column, as in `QuestionBuilder`; by default with the exactness of this question."""
        share = self.exactness if exact_share is None else exact_share
        return super().mention(column, many=many and column.kind != "flag", exact_share=share)

    def say_errors(self, m: Meaning) -> Meaning:
        """Sometimes call the events "errors" instead of the condition on the error flag; the conditions left to say."""
        flag = self.role("error")
        asked = [c for c in m.clauses if c.column is flag and c.values and c.values[0].value is True]
        word = self.rng.choice(_ERRORS).format(e=self.events)
        if not asked or m.any_of or m.calculations[0][0] != "COUNT" or self.chance(0.3):
            return m
        if flag is None or self.columns.resolve(word) not in {None, flag.name}:
            return m
        self.events = word
        return Meaning(**(m.__dict__ | {"clauses": tuple(c for c in m.clauses if c not in asked)}))

    def calculations(self, m: Meaning) -> str:
        """`p95 of latency and max latency`, `how many requests`."""
        if m.calculations[0][0] == "COUNT":
            return self.count_words()
        return " and ".join(self.aggregate(op, column) for op, column in m.calculations if column)

    @property
    def names_errors(self) -> bool:
        """Whether the word for the events stands for a condition, so that it must be said."""
        return self.events != plural(self.event)

    def count_words(self) -> str:
        """`number of requests`, `how many errors`."""
        shapes = tuple(shape for shape in _COUNT if "{e}" in shape) if self.names_errors else _COUNT
        return self.rng.choice(shapes).format(e=self.events)

    def aggregate(self, op: str, column: Column) -> str:
        """`p95 of latency`: the words of one calculation."""
        if op == "HEATMAP" and column.role == "duration" and self.chance(0.15):
            return self.mention(column, exact_share=0.3)
        many = op == "COUNT_DISTINCT"
        if many and column.kind in {"id", "email", "ip"} and self.chance(0.3) and (phrase := self.phrase(column)):
            return f"how many {plural(phrase)}"
        words = self.rng.choice(AGGREGATES[op])
        return words.format(c=self.mention(column, many=many and "(" not in words))

    def names(self, groups: tuple[Column, ...]) -> str:
        """`route and region`."""
        return self.join([self.mention(column) for column in groups], self.rng.choice(("and", "and", "and", "&")))

    def group_names(self, m: Meaning) -> tuple[str, str]:
        """The groups in the singular and, if there is only one, in the plural."""
        names = self.names(m.groups)
        return names, self.mention(m.groups[0], many=True) if len(m.groups) == 1 else names
