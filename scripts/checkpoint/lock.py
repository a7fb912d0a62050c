"""weights.lock for the weights that cog.yaml names.

Owns: turning a `weights:` stanza and a folder into an entry of the lock. Computes all that can be
computed outside Cog: its layers are compressed by Go and cannot be, so they are left out and
`envelopeFormat` is empty, which makes Cog compute them itself. Knows nothing of how weights are made.

    text = lock_text(Path("cog.yaml"), previous=None, now=datetime.now(UTC))
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from serving.weights import LockedSource, LockedWeights, WeightsLock, lock_files, set_digest

from .errors import CheckpointError

ENVELOPE_NOT_COMPUTED = ""


def make_lock(cog_yaml: Path, previous: WeightsLock | None, now: datetime) -> WeightsLock:
    """The lock of all weights of cog.yaml; `previous` itself when nothing has changed."""
    stanzas = yaml.safe_load(cog_yaml.read_text("utf-8")).get("weights") or []
    if not stanzas:
        raise CheckpointError(f"{cog_yaml} has no weights: stanza; name, target and source are needed there")
    known = {entry.name: entry for entry in previous.weights} if previous else {}
    entries = tuple(_entry(cog_yaml.parent, stanza, known, now) for stanza in stanzas)
    if previous is not None and entries == previous.weights:
        return previous
    return WeightsLock(version=1, envelope_format=ENVELOPE_NOT_COMPUTED, weights=entries)


def _entry(
    root: Path, stanza: dict[str, Any], known: dict[str, LockedWeights], now: datetime
) -> LockedWeights:
    name, target, source = stanza["name"], stanza["target"], stanza["source"]
    uri = _local_path(name, source)
    files = lock_files(root / uri)
    digest = set_digest(files)
    # The folder is taken whole, so what identifies it is what identifies the set.
    sources = (LockedSource(uri=f"file://./{uri}", fingerprint=digest),)
    before = known.get(name)
    if before and (before.set_digest, before.target, before.sources) == (digest, target, sources):
        return before
    return LockedWeights(
        name=name,
        target=target,
        sources=sources,
        imported_at=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        set_digest=digest,
        size=sum(file.size for file in files),
        files=files,
    )


def _local_path(name: str, source: Any) -> str:
    if not isinstance(source, dict) or source.keys() != {"uri"}:
        raise CheckpointError(
            f"weights {name!r}: only a source of one uri without include and exclude is locked here"
        )
    path = str(source["uri"]).removeprefix("file://").removeprefix("./").rstrip("/")
    if "://" in path or path.startswith("/"):
        raise CheckpointError(
            f"weights {name!r}: {source['uri']!r} is no folder of this repository; let Cog lock it"
        )
    return path
