"""Publishes a locked checkpoint on the model hub, with a card of what was measured."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from pipeline.fetching.source import HubSource, parse_source
from pipeline.publish.errors import PublishError
from pipeline.publish.hub_upload import CARD, HubUpload, LocalFile, UploadPlan
from pipeline.publish.model_card import is_ours, model_card
from pipeline.publish.road_report import read_road
from pipeline.publish.safe_folder import safe_folder, secrets_in
from pipeline.weights.console import say


def push_to_hub(
    target: str, folder: Path, *, public: bool, lock: Path | None, report: Path | None, dry_run: bool
) -> str:
    """Check, write the card, and upload; returns what was done, or with `dry_run` what would be.

    Args:
        target: `hf://ORG/NAME`.
        folder: the checkpoint. A README.md in it is its card; otherwise one is written.
        public: whether everybody may see a new repository.
        lock: the lock of the weights; None looks for it.
        report: what scripts/prepare measured; None looks beside the folder.
        dry_run: whether to change nothing.

    Raises:
        PublishError: it cannot or may not be published so.
        CheckpointError: the hub cannot be reached.
        WeightsError: the folder does not match its lock.
    """
    source = parse_source(target)
    if not isinstance(source, HubSource) or source.revision is not None:
        raise PublishError(f"{target}: give hf://ORG/NAME, without a revision: a push goes to the main branch")
    say(f"Checking {folder}")
    weights = safe_folder(folder, lock)
    files = [
        LocalFile(file.path, folder / file.path, file.size, file.digest.removeprefix("sha256:"))
        for file in weights.files
    ]
    with tempfile.TemporaryDirectory() as scratch:
        if CARD not in {file.name for file in files}:
            card = model_card(source.repo, weights, *read_road(weights, report))
            files.append(_card_file(card, Path(scratch) / CARD))
        upload = HubUpload(source.repo, tuple(files), public=public, is_ours=is_ours)
        if dry_run:
            return _described(upload.plan(), Path(scratch) / CARD)
        commit = upload.run()
    return f"hf://{source.repo}@{commit} has these {len(files)} files"


def _card_file(text: str, path: Path) -> LocalFile:
    data = text.encode()
    found = secrets_in(data)
    if found:
        raise PublishError(f"the card would hold {found[0]}, which the record of these weights has; remove it there")
    path.write_bytes(data)
    return LocalFile(CARD, path, len(data), hashlib.sha256(data).hexdigest())


def _described(plan: UploadPlan, card: Path) -> str:
    kind = "private" if plan.private else "public"
    lines = [f"create hf://{plan.repo}, {kind}" if plan.head is None else f"hf://{plan.repo} is there, {kind}"]
    if not plan.is_known:
        lines.append("without a login the hub was not asked what is there already")
    lines += [f"send  {file.name}  {file.size:,} bytes  sha256:{file.sha256}" for file in plan.send]
    lines += [f"there {name}, the same" for name in plan.there]
    lines += [f"keep  {name} of the repository" for name in plan.kept]
    lines.append(f"{len(plan.send)} files, {sum(file.size for file in plan.send):,} bytes to send; nothing was changed")
    if card.is_file():
        lines += ["", "The card:", "", card.read_text("utf-8")]
    return "\n".join(lines)
