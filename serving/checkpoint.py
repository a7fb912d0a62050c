"""One checkpoint and the adapters for it, whose files are read once, by whoever needs them first."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Self

from serving.adapters.adapter_companions import adapter_tokenizers
from serving.adapters.registry import KnownAdapters, known_adapters
from serving.config import Settings
from serving.text import Tokenizer, context_length


class Checkpoint:
    """What a task and an engine read of a checkpoint alike.

    Args:
        folder: has config.json, tokenizer.json, task.json and the tensors.
        max_model_len: prompt and answer tokens that fit one request; None takes the checkpoint's own.
        adapters: those that requests may name.
    """

    def __init__(self, folder: Path, *, max_model_len: int | None = None, adapters: KnownAdapters) -> None:
        self.folder = folder
        self.adapters = adapters
        self._max_model_len = max_model_len

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The checkpoint of the settings.

        Raises:
            AdapterError: the list of adapters or ADAPTER_SOURCES is wrong.
            SettingError: a setting of adapters would be ignored, because there can be none.
        """
        return cls(settings.weights_dir, max_model_len=settings.max_model_len, adapters=known_adapters(settings))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; it refuses texts that clearly exceed the context.

        Raises:
            WeightsError: a file is missing or cannot be read, or no file names an end token.
        """
        longest = self._max_model_len or context_length(self.folder)
        return Tokenizer.from_dir(self.folder, context_length=longest)

    @cached_property
    def adapter_tokenizers(self) -> Mapping[str, Tokenizer]:
        """The tokenizers of those adapters that add tokens, by the adapter's name.

        Raises:
            AdapterError: one cannot be used with this checkpoint.
        """
        return adapter_tokenizers(self.adapters, self.folder, self.tokenizer)
