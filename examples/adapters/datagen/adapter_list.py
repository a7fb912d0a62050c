"""Write the list of the example adapters, with their digests."""

from __future__ import annotations

from pathlib import Path

from serving.weights.adapter_files import TENSORS, adapter_digest

_HEAD = """# The example adapters of SmolLM2-135M-Instruct. README.md beside says how to serve them.
adapters:
"""


def write_list(folder: Path) -> None:
    """Write adapters.yaml for the adapters in the folders beside it."""
    entries = [
        f"  - name: {adapter.name}\n    source: {adapter.name}\n    task: {adapter.name}\n    max_rank: 8\n"
        f"    digest: {adapter_digest(adapter)}\n"
        for adapter in sorted(path.parent for path in folder.glob(f"*/{TENSORS}"))
    ]
    (folder / "adapters.yaml").write_text(_HEAD + "".join(entries), encoding="utf-8")
