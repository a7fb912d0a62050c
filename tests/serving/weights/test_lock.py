"""A lock is accepted only if all of it is valid; everything else is a WeightsError."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.errors import WeightsError
from serving.weights.lock import MAX_LOCK_BYTES, WeightsLock

DIGEST = "sha256:" + "ab" * 32


def set_digest(*paths: str) -> str:
    lines = sorted(f"{'ab' * 32}  {path}" for path in paths)
    return f"sha256:{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()}"


def lock(**changes: Any) -> dict[str, Any]:
    """A lock as Cog writes it, with every field."""
    entry = {
        "name": "tiny",
        "target": "/src/tiny",
        "sources": [{"uri": "file://./tiny", "fingerprint": DIGEST, "include": None, "exclude": []}],
        "importedAt": "2025-01-01T00:00:00Z",
        "digest": DIGEST,
        "setDigest": set_digest("a/b.txt"),
        "size": 3,
        "sizeCompressed": 2,
        "files": [{"path": "a/b.txt", "size": 3, "digest": DIGEST, "layer": DIGEST}],
        "layers": [{"digest": DIGEST, "mediaType": "tar", "size": 2, "sizeUncompressed": 3}],
    }
    return {"version": 1, "envelopeFormat": "v1", "weights": [{**entry, **changes}]}


def load(folder: Path, value: Any) -> WeightsLock:
    (folder / "weights.lock").write_text(value if isinstance(value, str) else json.dumps(value))
    return WeightsLock.load(folder / "weights.lock")


def test_a_lock_that_cog_completed_is_accepted(tmp_path: Path) -> None:
    entry = load(tmp_path, lock()).weights[0]
    assert entry.files[0].layer == DIGEST
    assert entry.sources[0].include == ()
    assert load(tmp_path, lock(layers=None, digest="")).weights[0].layers == ()


def test_unknown_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"weights\.0\.surprise: Extra inputs"):
        load(tmp_path, lock(surprise=1))


@pytest.mark.parametrize(
    "path", ["../x", "a/../x", "/etc/passwd", "a//b", "./a", "a/", "", "C:/x", "a\\b", "a\0b", "a\nb", ".."]
)
def test_paths_that_leave_the_folder_are_refused(tmp_path: Path, path: str) -> None:
    file = {"path": path, "size": 3, "digest": DIGEST}
    with pytest.raises(WeightsError, match="not a plain relative path"):
        load(tmp_path, lock(files=[file], setDigest=set_digest(path)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"setDigest": DIGEST}, "setDigest does not belong"),
        ({"size": 4}, "size 4 is not the sum"),
        ({"files": [{"path": "a/b.txt", "size": 1, "digest": DIGEST}] * 2}, "listed twice"),
        ({"files": []}, "at least 1 item"),
        ({"files": [{"path": {}, "size": 1, "digest": DIGEST}]}, "is not a path"),
        ({"files": [{"path": "a", "size": -1, "digest": DIGEST}]}, "greater than or equal to 0"),
        ({"files": [{"path": "a", "size": 1, "digest": "md5:1"}]}, "should match pattern"),
        ({"name": "../up"}, "should match pattern"),
        ({"target": "relative"}, "should match pattern"),
    ],
)
def test_locks_that_contradict_themselves_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        load(tmp_path, lock(**changes))


def test_other_versions_and_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"version.*scripts/lock_weights"):
        load(tmp_path, {**lock(), "version": 2})
    with pytest.raises(WeightsError, match="this is not a weights"):
        load(tmp_path, " " * (MAX_LOCK_BYTES + 1))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_anywhere_is_a_weights_error_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    """No other exception for any bytes."""
    text = bytearray(json.dumps(lock()).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    path = tmp_path / "weights.lock"
    path.write_bytes(text)
    try:
        found = WeightsLock.load(path)
    except WeightsError as error:
        assert str(path) in str(error)
    else:
        assert found.weights[0].set_digest == set_digest(*(file.path for file in found.weights[0].files))
