"""Asks a checkpoint with an adapter on demand: unmerged, over the weights as they are served."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from serving.config import Settings

_NAME: Final = "adapter"  # in the list; a folder's own name may be none that a list can have
_ANY_RANK: Final = 1 << 16


@contextmanager
def on_demand(
    settings: Settings, adapter: Path | None, task: Path | None = None
) -> Iterator[tuple[Settings, Mapping[str, str]]]:
    """Settings with which a model has the adapter, while the context lasts, and the inputs that name it.

    Args:
        settings: those of the model.
        adapter: folder of the adapter; None for the model alone, with no such input.
        task: a task file whose folder has what the adapter's prompts are made from; None for the adapter's own folder.
    """
    if adapter is None:
        yield settings, {}
        return
    with tempfile.TemporaryDirectory() as folder:
        entry = {"name": _NAME, "source": str(adapter.resolve()), "max_rank": _ANY_RANK}
        entry["task"] = str((adapter if task is None else task.parent).resolve())
        path = Path(folder) / "adapters.yaml"
        path.write_text(json.dumps({"adapters": [entry]}), "utf-8")
        # What it is to answer like is found out here.
        yield settings.model_copy(update={"adapters": path, "adapter_golden": False}), {"adapter": _NAME}
