"""The record of a version: what it was improved from, with which corrections, and how it compares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.weights.atomic import write_text
from pipeline.weights.errors import CheckpointError

_ENDING = ".version.json"


class Share(BaseModel):
    """How a version compares with its parent on one set of questions; shares are from 0 to 1.

    Args:
        n: the number of questions.
        before: the parent's share of right answers, or mean agreement.
        after: its own.
        low: the lower end of the paired 95 % interval of the difference.
        high: its upper end.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    n: int
    before: float
    after: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        """Its own share minus the parent's."""
        return self.after - self.before


class VersionRecord(BaseModel):
    """One version.

    Args:
        name: of its weights.
        parent: the name of the version that it was improved from.
        made: the time when it was finished, in UTC.
        corrections: the SHA-256 of the lines that were learned, and how many were learned and held out.
        chosen: which candidate it is.
        figures: by set of questions.
        speed: median seconds, tokens and passes of an answer, 16 at once; `current` is its parent's, `new` its own.
        lost: the number of answers that its parent had right and it has not, by set.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    parent: str
    made: str
    corrections: Mapping[str, Any]
    chosen: str
    figures: Mapping[str, Share]
    speed: Mapping[str, Mapping[str, float]]
    lost: Mapping[str, int]

    def write(self, weights: Path) -> None:
        """Write it beside the checkpoint."""
        write_text(version_path(weights), self.model_dump_json(indent=2) + "\n")


def version_path(weights: Path) -> Path:
    """Where the record of a version is: beside it, because a lock has all files of the folder."""
    return weights.with_name(f"{weights.name}{_ENDING}")


def read_version(weights: Path) -> VersionRecord | None:
    """The record of a checkpoint; None where it was not improved from another.

    Raises:
        CheckpointError: the file holds something else.
    """
    path = version_path(weights)
    if not path.is_file():
        return None
    try:
        return VersionRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise CheckpointError(f"{path} is no record of a version: {error.errors()[0]['msg']}; remove it") from error


def first_name(weights: Path) -> str:
    """The name of the version from which all before a checkpoint come, by which clients know each of them.

    Raises:
        CheckpointError: see `read_version`.
    """
    name, seen = weights.name, set[str]()
    while name not in seen and (record := read_version(weights.with_name(name))) is not None:
        seen.add(name)
        name = record.parent
    return name


def versions(folder: Path) -> Iterator[VersionRecord]:
    """The records in a folder of weights, in order of their names.

    Raises:
        CheckpointError: see `read_version`.
    """
    for path in sorted(folder.glob(f"[!.]*{_ENDING}")):
        if (record := read_version(path.with_name(path.name.removesuffix(_ENDING)))) is not None:
            yield record
