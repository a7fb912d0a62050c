"""A step of the road: a command of this repository, what it reads and what it writes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.paths import CODE
from pipeline.prepare.road_options import digest, identity
from pipeline.prepare.road_record import FileRecord


@dataclass(frozen=True, slots=True)
class Step:
    """One command.

    Args:
        name: of the step.
        command: name of the script, then its arguments.
        writes: files and folders that it leaves, in the work folder.
        needs: names of earlier steps whose files it reads.
        reads: files and folders of the user.
        report: file that it writes its --json into.
        continues: whether the command goes on with what an interrupted run of it left; otherwise that is removed.
        space: about how many bytes it writes; what is not known in advance counts as 0.
        may_refuse: whether exit code 1 with a report that has not passed is a result.
    """

    name: str
    command: tuple[str, ...]
    writes: tuple[Path, ...]
    needs: tuple[str, ...] = ()
    reads: tuple[Path, ...] = ()
    report: Path | None = None
    continues: bool = False
    space: int = 0
    may_refuse: bool = False

    def argv(self) -> list[str]:
        """The command as it is run."""
        script, *arguments = self.command
        return [str(CODE / "scripts" / script), *arguments]

    def words(self) -> tuple[str, ...]:
        """The script and its arguments as seen from the repository, without quotes."""
        script, *arguments = self.command
        return (f"scripts/{script}", *map(_from_here, arguments))

    def shown(self) -> str:
        """The command as a user would type it in the repository."""
        return shlex.join(self.words())

    def fingerprint(self, outputs: Mapping[str, Mapping[str, FileRecord]]) -> str:
        """Of the command and of the content of all that it reads; `outputs` are the files of earlier steps."""
        needed = {name: {path: file.sha256 for path, file in outputs[name].items()} for name in self.needs}
        read = {str(path): identity(path) for path in self.reads}
        return digest({"command": self.command, "needs": needed, "reads": read})

    def read_report(self) -> dict[str, Any] | None:
        """What the command said with --json; None where it has no report, or ended before it wrote one."""
        if self.report is None or not self.report.exists():
            return None
        content = json.loads(self.report.read_text("utf-8"))
        return content if isinstance(content, dict) else {"report": content}


def _from_here(argument: str) -> str:
    path = Path(argument)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return argument
