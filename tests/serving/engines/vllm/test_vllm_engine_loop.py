"""The thread and the event loop of vLLM's client end with the engine."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest

from serving.engines.vllm.engine import VllmEngine
from tests import tiny_tokenizers


class Client:
    """The part of vLLM's `AsyncLLM` that starting and closing use."""

    errored = False

    def __init__(self) -> None:
        self.threads: list[str] = []

    def shutdown(self) -> None:
        self.threads.append(threading.current_thread().name)


def open_sockets() -> int:
    gc.collect()
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(str(link.readlink()).startswith("socket:") for link in links)


def engine_with(client: Client | Exception) -> VllmEngine:
    def start() -> Client:
        if isinstance(client, Exception):
            raise client
        return client

    return VllmEngine(
        start,  # type: ignore[arg-type]
        tokenizer=tiny_tokenizers.byte_level(),
        max_num_seqs=1,
        max_queue=1,
    )


def test_a_closed_engine_leaves_no_thread_and_no_socket() -> None:
    sockets, threads, client = open_sockets(), threading.active_count(), Client()
    engine = engine_with(client)
    assert open_sockets() > sockets, "the loop's socket pair, which is counted below"
    engine.close()
    engine.close()
    assert client.threads == ["vllm-client"], "vLLM is shut down once, on the loop that owns it"
    assert (open_sockets(), threading.active_count()) == (sockets, threads)


def test_a_start_that_fails_leaves_no_thread_and_no_socket() -> None:
    sockets, threads = open_sockets(), threading.active_count()
    with pytest.raises(ValueError, match="no such dtype"):
        engine_with(ValueError("no such dtype"))
    assert (open_sockets(), threading.active_count()) == (sockets, threads)
