"""Lists versions with what they were improved from, compares two, and goes back to the one before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.package.switch_model import used_name
from pipeline.package.version import VersionRecord, read_version, versions
from pipeline.weights.errors import CheckpointError


def tree(root: Path) -> Iterator[str]:
    """A line for each version and its descendants, those of one parent together; `*` is the one in use."""
    records = {record.name: record for record in versions(root / "weights")}
    used = used_name(root)
    first = {record.parent for record in records.values()} - records.keys() | ({used} - records.keys())

    def below(name: str, depth: int) -> Iterator[str]:
        record = records.get(name)
        yield f"{'*' if name == used else ' '} {'  ' * depth}{name}{'' if record is None else f': {_about(record)}'}"
        for child in sorted(records):
            if records[child].parent == name:
                yield from below(child, depth + 1)

    for name in sorted(first):
        yield from below(name, 0)


def comparison(root: Path, first: str, second: str) -> Iterator[str]:
    """The lines of a table of what two versions answered when they were made, and of an improvement its change.

    Raises:
        CheckpointError: neither has figures.
    """
    folder = root / "weights"
    found = [_figures(folder, name) for name in (first, second)]
    if not all(found):
        missing = next(name for name, figures in zip((first, second), found, strict=True) if not figures)
        raise CheckpointError(f"{missing} has no figures: it was not made by scripts/improve, and nothing was from it")
    yield f"| right answers | {first} | {second} |"
    yield "|---|---|---|"
    for name in dict.fromkeys([*found[0], *found[1]]):
        yield f"| {name} | {_cell(found[0].get(name))} | {_cell(found[1].get(name))} |"
    yield ""
    record = read_version(folder / second)
    if record is not None and record.parent == first:
        for name, share in record.figures.items():
            low, high = 100 * share.low, 100 * share.high
            yield f"- {name}: {100 * share.difference:+.1f} points ({low:+.1f} to {high:+.1f}, paired)"
    else:
        yield "The sets may differ between these versions, as neither was improved from the other in this order."


def parent_of_used(root: Path) -> str:
    """The name of the version that the one in use was improved from.

    Raises:
        CheckpointError: it was not improved from another.
    """
    used = used_name(root)
    record = read_version(root / "weights" / used)
    if record is None:
        raise CheckpointError(f"{used} was not improved from another version; scripts/use_weights lists all models")
    return record.parent


def _figures(folder: Path, name: str) -> Mapping[str, tuple[float, int]]:
    """What a version answered right by set, and of how many: its own figures, or those that its child has of it."""
    record = read_version(folder / name)
    if record is not None:
        return {key: (share.after, share.n) for key, share in record.figures.items()}
    child = next((one for one in versions(folder) if one.parent == name), None)
    return {} if child is None else {key: (share.before, share.n) for key, share in child.figures.items()}


def _cell(found: tuple[float, int] | None) -> str:
    return "" if found is None else f"{100 * found[0]:.1f} % of {found[1]}"


def _about(record: VersionRecord) -> str:
    name, share = next(iter(record.figures.items()))
    return (
        f"{record.made[:10]}, {record.corrections['learned']} corrections learned, {name} "
        f"{100 * share.before:.0f} → {100 * share.after:.0f} %"
    )
