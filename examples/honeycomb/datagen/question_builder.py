"""Build one question: its words, its meaning, and how it refers to columns.

A phrase is used only if it refers to the column by the rule of `column_set`. Exact names and values are guarded, so
that typing errors are not added to them.
"""

from collections.abc import Callable, Sequence
from random import Random

from examples.honeycomb.datagen.column_set import Column, ColumnSet
from examples.honeycomb.datagen.lists import word_list
from examples.honeycomb.datagen.phrasebook import Phrasebook
from examples.honeycomb.datagen.query_draft import Draft
from examples.honeycomb.datagen.sample_values import Value
from examples.honeycomb.datagen.words import last_part, plural, split_words, strip_units

GUARD, END_GUARD = "\x02", "\x03"
_EVENTS = {"request": 42, "event": 26, "span": 16, "call": 7, "log": 4, "operation": 3, "record": 2}
_MAIN_ROLES = frozenset({"service", "route", "name", "method", "status", "host", "region", "env", "user"})


def _is_tracing(column: Column) -> bool:
    return column.role in {"trace", "parent"} or split_words(column.name)[-2:] == ("span", "id")


def guard(text: str) -> str:
    """Mark text that later steps must not change."""
    return f"{GUARD}{text}{END_GUARD}"


class QuestionBuilder:
    """Builds one question about one column list."""

    def __init__(self, rng: Random, columns: ColumnSet, book: Phrasebook) -> None:
        self.rng = rng
        self.columns = columns
        self.book = book
        self.draft = Draft()
        self.front = ""
        self.before = ""
        self.event = rng.choices(tuple(_EVENTS), tuple(_EVENTS.values()))[0]
        if columns.resolve(self.event) or columns.resolve(plural(self.event)):
            self.event = "event"  # otherwise "requests" could mean a column

    def chance(self, share: float) -> bool:
        """True with probability `share`."""
        return self.rng.random() < share

    def say(self, section: str, **slots: str) -> str:
        """A phrase of the phrasebook, with the words for events filled in."""
        before = f"{self.before} " if self.before else ""
        return self.book.say(section, event=before + self.event, events=before + plural(self.event), **slots)

    def role(self, role: str) -> Column | None:
        """The column with this role, if the dataset has it."""
        return self.columns.roles.get(role)

    def pick(self, fits: Callable[[Column], bool], *, main_share: float = 0.45) -> Column | None:
        """A random unused column that fits; columns that every dataset has are more likely."""
        used = self.draft.used
        pool = [c for c in self.columns.columns if fits(c) and c.name not in used]
        main = [c for c in pool if c.role in _MAIN_ROLES]
        if main and self.chance(main_share):
            return self.rng.choice(main)
        others = [c for c in pool if not c.exact_only or self.chance(0.3)]
        return self.rng.choice(others) if others else None

    def pick_group(self, *, main_share: float = 0.45, flags: bool = True) -> Column | None:
        """A random column to group by; ids of traces and spans are rare."""
        rare = self.chance(0.1)
        return self.pick(
            lambda c: c.groupable and (flags or c.kind != "flag") and (rare or not _is_tracing(c)),
            main_share=main_share,
        )

    def pick_filter(self) -> Column | None:
        """A random column for a condition; ids of traces and spans are rare."""
        rare = self.chance(0.3)
        return self.pick(lambda c: c.kind != "ts" and (rare or not _is_tracing(c)))

    def mention(self, column: Column, *, many: bool = False, exact_share: float = 0.36) -> str:
        """Words for a column: its name, a part of it or a synonym, in the plural if `many`."""
        phrase = self.phrase(column) if not self.chance(exact_share) else None
        if phrase is None:
            return self.exact(column)
        return plural(phrase) if many else phrase

    def phrase(self, column: Column) -> str | None:
        """Words for a column other than its name that refer only to it; None if there are none."""
        options = self._phrases(column)
        return self.rng.choice(options) if options else None

    def exact(self, column: Column) -> str:
        """The exact name, sometimes in another case or in quotes."""
        name = column.name
        if self.chance(0.03) and sum(name.lower() == other.lower() for other in self.columns.names) == 1:
            name = self.rng.choice((name.lower(), name.upper()))
        if self.chance(0.05):
            mark = self.rng.choice("`'\"")
            name = f"{mark}{name}{mark}"
        return guard(name)

    def quote(self, value: Value) -> str:
        """A value, in quotes if necessary and sometimes otherwise."""
        bare_is_clear = not any(c in value.text for c in " ,;()'\"") and value.text
        if bare_is_clear and not self.chance(0.22):
            return guard(value.text)
        mark = self.rng.choice("''\"\"`")
        return guard(f"{mark}{value.text}{mark}")

    def join(self, words: Sequence[str], last: str) -> str:
        """Join words: `a, b or c`."""
        if len(words) == 1:
            return words[0]
        comma = "," if len(words) > 2 and self.chance(0.3) else ""
        return f"{', '.join(words[:-1])}{comma} {last} {words[-1]}"

    def _phrases(self, column: Column) -> list[str]:
        """All phrases except the name that refer to this column; synonyms have more weight."""
        if column.exact_only:
            return []
        words = split_words(column.name)
        first = 1 if words[:1] == words[1:2] else 0  # not "trace trace id"
        phrases = [" ".join(words[start:]) for start in range(first, max(first + 1, len(words) - 1))]
        phrases += [words[-1]] if words[-1] in word_list("attributes") else []
        phrases += [last_part(column.name)] if "." in column.name else []
        phrases += [" ".join(strip_units(words)), " ".join(strip_units(split_words(last_part(column.name))))]
        phrases += 2 * [*column.strong, *column.synonyms] + list(column.weak)
        vague = {*word_list("vague words"), *word_list("too general alone")} - {column.name}
        return [p for p in phrases if p and p not in vague and self._means(p, column)]

    def _means(self, phrase: str, column: Column) -> bool:
        """Whether the phrase refers to the column, and to no other one without its unit ("latency ms")."""
        bare = " ".join(strip_units(split_words(phrase)))
        return self.columns.resolve(phrase) == column.name and self.columns.resolve(bare) in {
            column.name,
            None,
        }
