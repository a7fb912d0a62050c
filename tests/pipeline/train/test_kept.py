"""What scripts/improve rounds with is what the checkpoint was rounded with, whichever way scripts/prepare took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.prepare.record import record_path
from pipeline.prepare.run import work_path
from pipeline.train.kept import prepared_from


@pytest.mark.parametrize(
    ("steps", "options", "search"),
    [
        (["quantize"], {}, "search.safetensors"),
        (["quantize", "quantize-closer"], {}, "search-closer.safetensors"),
        (["quantize", "quantize-closer", "quantize-mixed"], {}, "search-mixed.safetensors"),
        (["quantize"], {"reuse_search": "/given"}, "/given"),
        (["quantize", "quantize-mixed"], {"reuse_search": "/given"}, "search-mixed.safetensors"),
        ([], {"quantize": False}, None),
    ],
)
def test_the_search_result_is_that_of_the_last_way(
    tmp_path: Path, steps: list[str], options: dict[str, Any], search: str | None
) -> None:
    source = {"source": "/somewhere", "files": {}}
    step = {"command": [], "wall_seconds": 1, "processor_seconds": 1, "peak_memory_bytes": 1, "bytes_written": 1}
    record = {
        **{"name": "a", "made": "2026-11-28T07:49:55Z", "made_from": "0", "machine": {}, "task": "schema"},
        **{"base": source, "adapter": source, "options": {"adapter": "/adapter", "quantize": True} | options},
        **{"steps": [step | {"name": name, "files_written": 1, "report": None} for name in ("merge", *steps)]},
        **{"comparison": None, "files": {}, "size": 1},
    }
    record_path(tmp_path / "a").write_text(json.dumps(record))
    found = None if search is None else work_path(tmp_path / "a") / search
    assert prepared_from(tmp_path / "a") == (Path("/adapter"), found)
