"""The thread and the event loop of vLLM's client end with the engine."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest

from serving.adapters.adapter_store import AdapterStore
from serving.adapters.registry import AdapterEntry
from serving.engines.vllm.adapters import Call, VllmAdapter
from serving.engines.vllm.engine import VllmEngine
from serving.weights.adapter_files import Loaded
from tests import tiny_tokenizers


class Client:
    """The part of vLLM's `AsyncLLM` that starting and closing use."""

    errored = False

    def __init__(self) -> None:
        self.threads: list[str] = []

    def shutdown(self) -> None:
        self.threads.append(threading.current_thread().name)

    def __del__(self) -> None:
        self.shutdown()


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
    shut_down = client.threads
    del engine, client
    assert (open_sockets(), threading.active_count()) == (sockets, threads)
    assert shut_down == ["vllm-client"], "vLLM is shut down once, on the loop that owns it"


def test_a_start_that_fails_leaves_no_thread_and_no_socket() -> None:
    sockets, threads = open_sockets(), threading.active_count()
    with pytest.raises(ValueError, match="no such dtype"):
        engine_with(ValueError("no such dtype"))
    assert (open_sockets(), threading.active_count()) == (sockets, threads)


class LoraClient(Client):
    """What the engine needs to load adapters, and to ask with them; every request has one output."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, object]] = []

    async def add_lora(self, request: object) -> bool:
        self.calls.append(("add", request))
        return True

    async def remove_lora(self, number: int) -> bool:
        self.calls.append(("remove", number))
        return True


async def test_adapters_are_loaded_on_the_client_s_loop_and_removed_when_others_need_the_room() -> None:
    entries = {name: AdapterEntry(name, Path(name)) for name in "ab"}

    def open_adapters(llm: LoraClient, call: Call, send: Call) -> AdapterStore[VllmAdapter]:
        def load(entry: AdapterEntry) -> Loaded[VllmAdapter]:
            call(lambda: llm.add_lora(entry.name))
            return Loaded(VllmAdapter(entry.name, nbytes=10), "digest")

        drop = lambda lora: send(lambda: llm.remove_lora(lora.request))  # noqa: E731
        stores.append(AdapterStore(entries, load, max_bytes=10, drop=drop))
        return stores[0]

    client, stores = LoraClient(), list[AdapterStore[VllmAdapter]]()
    engine = VllmEngine(
        lambda: client,  # type: ignore[arg-type, return-value]
        tokenizer=tiny_tokenizers.byte_level(),
        max_num_seqs=1,
        max_queue=1,
        open_adapters=open_adapters,
    )
    for name in "aba":
        async with stores[0].lease(name) as adapter:
            assert adapter is not None and adapter.request == name
    engine.close()
    assert client.calls == [("add", "a"), ("add", "b"), ("remove", "a"), ("add", "a"), ("remove", "b")]
