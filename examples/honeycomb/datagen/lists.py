"""Read `lists.txt`, the words of which values and names are made."""

from functools import lru_cache
from pathlib import Path

PATH = Path(__file__).parent / "lists.txt"


@lru_cache(maxsize=1)
def _lists() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    section = ""
    for line in PATH.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            found[section] = ()
        elif line and not line.startswith("#"):
            found[section] += tuple(line.split(", "))
    return found


def word_list(name: str) -> tuple[str, ...]:
    """The words of one section, such as `regions`, in order."""
    return _lists()[name]
