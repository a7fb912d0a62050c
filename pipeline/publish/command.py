"""The command line of scripts/push."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.paths import ROOT
from pipeline.publish.errors import PublishError
from pipeline.publish.hub import push_to_hub
from pipeline.publish.replicate import push_to_replicate
from pipeline.weights.console import report_errors

_FILE = {"exists": True, "dir_okay": False}


def main(
    target: Annotated[str | None, typer.Argument(help="hf://ORG/NAME on the model hub")] = None,
    weights: Annotated[Path | None, typer.Option(help="folder of the checkpoint, for the hub", file_okay=False)] = None,
    public: Annotated[
        bool, typer.Option("--public", help="make a new repository public; without it, it is private")
    ] = False,
    lock: Annotated[
        Path | None, typer.Option(help="of the weights; else NAME.lock beside them, or weights.lock", **_FILE)
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="the record of scripts/prepare; else NAME.prepare.json beside the weights", **_FILE),
    ] = None,
    replicate: Annotated[
        str | None, typer.Option(metavar="r8.im/OWNER/NAME", help="check this package and push it to Replicate")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be done, and change nothing")] = False,
) -> None:
    """Publish: a locked checkpoint with its model card on the hub, or this package on Replicate.

    A push that was stopped continues when it is called again. Logins are those of `hf auth login` and `cog login`.
    """
    with report_errors(PublishError):
        if replicate is not None:
            if target is not None or weights is not None or public or lock is not None or report is not None:
                raise PublishError("--replicate pushes this package as cog.yaml says; give only --dry-run with it")
            raise typer.Exit(push_to_replicate(replicate, ROOT, dry_run=dry_run))
        if target is None or weights is None:
            raise PublishError("give hf://ORG/NAME and --weights FOLDER, or --replicate r8.im/OWNER/NAME")
        print(push_to_hub(target, weights, public=public, lock=lock, report=report, dry_run=dry_run))
