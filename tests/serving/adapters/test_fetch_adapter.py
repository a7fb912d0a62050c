"""Adapters from a small model hub and web server: which files come, and what callers see when they do not."""

from __future__ import annotations

import logging
from pathlib import Path

import huggingface_hub.constants
import pytest

from serving.adapters.adapter_folders import AdapterFolders
from serving.adapters.disk_cache import DiskCache
from serving.adapters.fetch_adapter import FetchLimits, fetch_adapter
from serving.adapters.registry import AdapterEntry
from serving.adapters.remote_source import HttpsSource, HubSource
from serving.errors import AdapterError, WeightsError
from serving.weights.adapter_files import CONFIG, TENSORS, adapter_digest
from tests.pipeline.fetching.hub_server import Hub

FILES = {CONFIG: b"{}", TENSORS: b"t" * 50_000, "chat_template.jinja": b"x"}
MORE = {"additional_chat_templates/rag.jinja": b"y"}
OTHERS = {"README.md": b"-", "optimizer.pt": b"o" * 20_000, "adapter_model.bin": b"p"}
LIMITS = FetchLimits(max_bytes=100_000, seconds=60)


@pytest.fixture
def hub(monkeypatch):
    hub = Hub({"org/adapter": FILES | MORE | OTHERS})
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    yield hub
    hub.close()


@pytest.fixture(params=["hub", "web"])
def source(request, hub):
    return HubSource("org/adapter", "main") if request.param == "hub" else HttpsSource(f"{hub.url}/plain/org/adapter/")


def fetched(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_files_that_count_are_fetched_and_no_others(source, tmp_path):
    fetch_adapter(source, tmp_path, LIMITS)
    assert fetched(tmp_path) == (FILES | MORE if isinstance(source, HubSource) else FILES)


def test_a_busy_server_is_asked_again(hub, source, tmp_path):
    hub.faults.statuses = [(503, {}), (429, {})]
    fetch_adapter(source, tmp_path, LIMITS)
    assert (tmp_path / TENSORS).read_bytes() == FILES[TENSORS]


def test_a_broken_connection_is_made_again(hub, source, tmp_path):
    hub.faults.cuts = 1
    fetch_adapter(source, tmp_path, LIMITS)
    assert (tmp_path / TENSORS).read_bytes() == FILES[TENSORS]


def test_what_cannot_be_had_is_an_error_that_says_what_to_do(hub, source, tmp_path):
    hub.faults.statuses = [(500, {})] * 3
    with pytest.raises(AdapterError, match=r"does not answer \(status 500\); try again later"):
        fetch_adapter(source, tmp_path, LIMITS)
    with pytest.raises(AdapterError, match="over 10,000 bytes, which is the limit"):
        fetch_adapter(source, tmp_path, FetchLimits(10_000, 60))
    with pytest.raises(AdapterError, match=r"not fetched within 0 s"):
        fetch_adapter(source, tmp_path, FetchLimits(100_000, 0))
    with pytest.raises(AdapterError, match="the server was closed"):
        fetch_adapter(source, tmp_path, FetchLimits(100_000, 60, lambda: True))
    del hub.repos["org/adapter"][TENSORS]
    with pytest.raises(AdapterError, match=f"answers 404 for {TENSORS}"):
        fetch_adapter(source, tmp_path, LIMITS)


def test_offline_the_hub_is_not_asked(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(AdapterError, match="the operator sets HF_HUB_OFFLINE=0"):
        fetch_adapter(HubSource("org/adapter", "main"), tmp_path, LIMITS)
    assert not hub.requests


@pytest.mark.parametrize("target", ["http://192.0.2.1/x", "http://127.0.0.1:1/x"])
def test_a_redirect_to_plain_http_is_not_followed(hub, tmp_path, target):
    """Not to this machine either, unless the source is there: from elsewhere it would reach what only we can."""
    from serving.adapters.fetch_adapter import _Download

    with _Download(LIMITS, is_local=target.startswith("http://192")) as download:
        hub.faults.statuses = [(302, {"location": target})]
        with pytest.raises(AdapterError, match="leads to plain http"):
            download.file(f"{hub.url}/plain/org/adapter/{CONFIG}", tmp_path / "x", {}, needed=True)


def entry_of(source, tmp_path):
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    return AdapterEntry("name", source, adapter_digest(tmp_path))


def test_errors_name_the_adapter_and_only_the_log_the_path(hub, tmp_path, caplog):
    folders = AdapterFolders(DiskCache(tmp_path / "cache", max_bytes=10**6), max_bytes=10**6, base=tmp_path / "base")
    private = tmp_path / "private"
    private.mkdir()
    for entry in (
        AdapterEntry("name", private),
        entry_of(HttpsSource(f"{hub.url}/plain/org/adapter/"), private),
    ):
        for error, shown in (
            (lambda folder: WeightsError(f"{folder}/{CONFIG}: use_dora; {tmp_path}/base has none"), f"{CONFIG}: use_"),
            (lambda folder: OSError(5, "broken", str(folder)), "OSError; the server's log says more"),
        ):
            caplog.clear()
            with (
                caplog.at_level(logging.WARNING),
                pytest.raises(AdapterError, match="adapter 'name' cannot be loaded: ") as raised,
                folders.open(entry) as folder,
            ):
                raise error(folder)
            assert shown in str(raised.value)
            assert str(tmp_path) not in str(raised.value) and hub.url not in str(raised.value)
            assert str(Path(folder)) in caplog.text
