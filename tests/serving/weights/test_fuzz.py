"""Damaged headers, locks and task files give a typed error or a valid reading, quickly and in little memory."""

from __future__ import annotations

import hashlib
import json
import random
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from safetensors import SafetensorError, safe_open

from serving.errors import ServingError, WeightsError
from serving.weights.lock import WeightsLock
from serving.weights.safetensors_header import read_safetensors_header
from tasks.chat.options import ChatOptions
from tasks.errors import TaskError
from tasks.honeycomb.options import HoneycombOptions
from tasks.task import create_task, task_name
from tests.serving.weights.fuzzing import CASES, run
from tests.tiny_tokenizers import byte_level


def header() -> bytes:
    tensors = {"a": ("F32", [2], 0, 8), "b": ("I32", [2, 1], 8, 16), "c": ("U8", [0], 16, 16)}
    entries = {n: {"dtype": d, "shape": s, "data_offsets": [b, e]} for n, (d, s, b, e) in tensors.items()}
    return json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()


def test_headers(tmp_path: Path) -> None:
    """An accepted header has tensors that cover exactly the file, as the format's own library reads them."""
    path, rng = tmp_path / "m.safetensors", random.Random(7)

    def check(text: bytes) -> bool:
        length = len(text)
        if rng.random() < 0.1:
            length = rng.choice((0, 1, length - 1, length + 1, length + 16, 2**32, 2**63, 2**64 - 1)) % 2**64
        path.write_bytes(length.to_bytes(8, "little") + text + bytes(rng.choice((16, 16, 16, 15, 17, 0))))
        try:
            found = read_safetensors_header(path)
        except WeightsError as error:
            assert str(path) in str(error)
            return False
        size = path.stat().st_size
        ends = [found.data_start + entry.end for entry in found.tensors.values()]
        assert max(ends, default=found.data_start) == size
        assert all(0 <= entry.begin <= entry.end for entry in found.tensors.values())
        try:
            with safe_open(path, "numpy") as file:
                assert set(file.keys()) == set(found.tensors)
        except SafetensorError:
            pass  # it refuses more, such as metadata that is not UTF-8
        return True

    assert 0 < run(header(), check) < CASES / 2


def lock() -> bytes:
    digest = "sha256:" + "ab" * 32
    lines = "\n".join(f"{'ab' * 32}  {path}" for path in ("a/b.txt", "m.safetensors"))
    files = [{"path": path, "size": 3, "digest": digest, "layer": digest} for path in ("a/b.txt", "m.safetensors")]
    source = {"uri": "hf://a/b@main", "fingerprint": "commit:1", "include": ["*"], "exclude": None}
    entry = {"name": "tiny", "target": "/src/tiny", "sources": [source], "importedAt": "2025-01-01T00:00:00Z"}
    entry |= {"setDigest": f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}", "size": 6, "files": files}
    return json.dumps({"version": 1, "envelopeFormat": "", "weights": [entry]}, indent=1).encode()


def test_locks(tmp_path: Path) -> None:
    """An accepted lock has only relative paths inside the folder, and consistent sizes and digests."""
    path = tmp_path / "weights.lock"

    def check(text: bytes) -> bool:
        path.write_bytes(text)
        try:
            found = WeightsLock.load(path)
        except WeightsError as error:
            assert str(path) in str(error)
            return False
        for entry in found.weights:
            assert entry.size == sum(file.size for file in entry.files)
            folder = (tmp_path / "weights").resolve()
            assert all((folder / file.path).resolve().is_relative_to(folder) for file in entry.files)
        again = WeightsLock.model_validate_json(found.text())
        assert again == found
        return True

    assert 0 < run(lock(), check) < CASES / 2


def test_task_files(tmp_path: Path) -> None:
    content = {"task": "honeycomb", "name": "m", "prompt": "columns-first", "surface": "json"}
    tokenizer = byte_level()

    def check(text: bytes) -> bool:
        (tmp_path / "task.json").write_bytes(text)
        accepted = False
        for read in (task_name, HoneycombOptions.load, ChatOptions.load):
            with suppress(TaskError):
                read(tmp_path)
                accepted = True
        with suppress(TaskError, ServingError):
            create_task(tmp_path, tokenizer)
        return accepted

    assert 0 < run(json.dumps(content).encode(), check, 3_000) < 3_000


@pytest.mark.parametrize(
    "text", [b"[" * 10**6, b"[" + b"[]," * 10**6 + b"[]]", b'{"a":' * 10**5], ids=["deep", "wide", "objects"]
)
def test_large_hostile_files_take_little_memory(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    (tmp_path / "weights.lock").write_bytes(text)
    tracemalloc.start()
    with pytest.raises(WeightsError):
        read_safetensors_header(tmp_path / "m.safetensors")
    with pytest.raises(WeightsError):
        WeightsLock.load(tmp_path / "weights.lock")
    assert tracemalloc.get_traced_memory()[1] < 100 * len(text)
    tracemalloc.stop()


def test_a_header_s_claimed_length_is_not_allocated(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes((2**40).to_bytes(8, "little") + b"{}")
    tracemalloc.start()
    with pytest.raises(WeightsError, match="does not fit"):
        read_safetensors_header(path)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
