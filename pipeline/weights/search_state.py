"""What an AWQ search has finished, in a folder beside its output, so that a killed search continues at the next layer.

layers.safetensors files: the result of each finished layer; hidden-N.safetensors: the inputs of layer N
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .atomic import write_json
from .awq_search_file import load_search_result, save_search_result
from .awq_search_result import AwqSearchResult
from .errors import CheckpointError
from .safetensors_io import SafetensorsFile, write_safetensors
from .tensors import Array, ArraysInMemory


class SearchState:
    """The finished layers of one search.

    Args:
        folder: for its files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def beside(cls, output: Path) -> SearchState:
        """The state of the search whose checkpoint will be `output`."""
        return cls(output.with_name(f".{output.name}.search"))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from the folder.

        Raises:
            CheckpointError: another process uses it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CheckpointError(f"{self.folder} is used by another scripts/quantize_awq; wait for it") from error
            yield

    def begin(self, about: Mapping[str, Any]) -> int:
        """Keep the finished layers if they are of the same search, else remove them; returns their number.

        Args:
            about: all that decides the result: the checkpoint, the texts, the group size, the versions.
        """
        path = self.folder / "about.json"
        if not path.exists() or json.loads(path.read_text("utf-8")) != dict(about):
            for old in (*self.folder.glob("layer-*"), *self.folder.glob("hidden-*")):
                old.unlink()
            write_json(path, dict(about))
        done = 0
        while self._layer(done).exists():
            done += 1
        return done

    def finish_layer(self, layer: int, result: AwqSearchResult, hidden: Array) -> None:
        """Save a layer's result, and the hidden states behind it: the inputs of the next layer."""
        write_safetensors(self._hidden(layer + 1), ArraysInMemory({"hidden": hidden}))
        save_search_result(self._layer(layer), result)  # from here on the layer counts as finished
        self._hidden(layer).unlink(missing_ok=True)

    def hidden(self, layer: int) -> Array:
        """The hidden states that a layer reads. [texts, tokens, hidden size]"""
        return SafetensorsFile(self._hidden(layer)).load("hidden")

    def result(self, layer: int) -> AwqSearchResult:
        """The result of a finished layer."""
        return load_search_result(self._layer(layer))

    def remove(self) -> None:
        """Remove the folder: its result is in the checkpoint."""
        shutil.rmtree(self.folder)

    def _layer(self, layer: int) -> Path:
        return self.folder / f"layer-{layer:03}.safetensors"

    def _hidden(self, layer: int) -> Path:
        return self.folder / f"hidden-{layer:03}.safetensors"
