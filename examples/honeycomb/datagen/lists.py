"""Read `lists.txt`, the words of which values and names are made."""

from functools import lru_cache
from pathlib import Path

from examples.honeycomb.datagen.vocabulary import sections

PATH = Path(__file__).parent / "lists.txt"


@lru_cache(maxsize=1)
def _lists() -> dict[str, tuple[str, ...]]:
    return {name: tuple(", ".join(lines).split(", ")) for name, _, lines in sections(PATH)}


def word_list(name: str) -> tuple[str, ...]:
    """The words of one section, such as `regions`, in order."""
    return _lists()[name]
