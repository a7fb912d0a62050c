"""Adapters from a small model hub and web server: which files come, and what callers see when they do not."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

import huggingface_hub.constants
import pytest

from serving.adapters.adapter_folders import AdapterFolders
from serving.adapters.disk_cache import DiskCache
from serving.adapters.fetch_adapter import FetchLimits, fetch_adapter
from serving.adapters.registry import AdapterEntry
from serving.errors import AdapterError, WeightsError
from serving.fetching.download import Downloader
from serving.fetching.remote_source import HttpsSource, HubSource
from serving.fetching.retry import Watch
from serving.weights.adapter_files import CONFIG, TENSORS, adapter_digest
from tests.pipeline.fetching.hub_server import Hub, ask_from_here

FILES = {CONFIG: b"{}", TENSORS: b"t" * 50_000, "chat_template.jinja": b"x", "draft.model": b"d"}
MORE = {"additional_chat_templates/rag.jinja": b"y"}
OTHERS = {"README.md": b"-", "optimizer.pt": b"o" * 20_000, "adapter_model.bin": b"p"}
LIMITS = FetchLimits(max_bytes=100_000, seconds=60)


@pytest.fixture
def hub(monkeypatch):
    hub = Hub({"org/adapter": FILES | MORE | OTHERS})
    ask_from_here(monkeypatch, hub)
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


def test_a_busy_server_is_asked_again_and_nothing_is_printed(hub, source, tmp_path, capfd):
    hub.faults.statuses = [(503, {}), (429, {})]
    fetch_adapter(source, tmp_path, LIMITS)
    assert tuple(capfd.readouterr()) == ("", "")
    assert (tmp_path / TENSORS).read_bytes() == FILES[TENSORS]


def test_a_broken_connection_is_made_again(hub, source, tmp_path):
    hub.faults.cuts = 1
    fetch_adapter(source, tmp_path, LIMITS)
    assert (tmp_path / TENSORS).read_bytes() == FILES[TENSORS]


def test_what_cannot_be_had_is_an_error_that_says_what_to_do(hub, source, tmp_path):
    hub.faults.statuses = [(500, {})] * 3
    said = r"(its source: the hub|adapter_config.json: the server) answered 500, 3 times; try again later"
    with pytest.raises(AdapterError, match=said):
        fetch_adapter(source, tmp_path, LIMITS)
    with pytest.raises(AdapterError, match="over 10,000 bytes, which is the limit"):
        fetch_adapter(source, tmp_path, FetchLimits(10_000, 60))
    with pytest.raises(AdapterError, match=r"not fetched within 0 s"):
        fetch_adapter(source, tmp_path, FetchLimits(100_000, 0))
    with pytest.raises(AdapterError, match="the server was closed"):
        fetch_adapter(source, tmp_path, FetchLimits(100_000, 60, lambda: True))
    del hub.repos["org/adapter"][TENSORS]
    with pytest.raises(AdapterError, match=f"{TENSORS}: it is missing or may not be read"):
        fetch_adapter(source, tmp_path, LIMITS)


def test_a_private_repository_needs_the_server_s_login(hub, tmp_path, monkeypatch):
    hub.token = "hf_secretsecretsecret"
    with pytest.raises(AdapterError, match="its source: no such repository, or it is private"):
        fetch_adapter(HubSource("org/adapter"), tmp_path, LIMITS)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    fetch_adapter(HubSource("org/adapter"), tmp_path, LIMITS)
    assert fetched(tmp_path) == FILES | MORE


def test_offline_the_hub_is_not_asked(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(AdapterError, match="whoever runs this sets HF_HUB_OFFLINE=0"):
        fetch_adapter(HubSource("org/adapter", "main"), tmp_path, LIMITS)
    assert not hub.requests


def test_a_redirect_to_plain_http_is_not_followed(hub, tmp_path):
    """Not to this machine either, unless the source is there: from elsewhere it would reach what only we can."""
    hub.faults.statuses = [(302, {"location": "http://192.0.2.1/x"})]
    with pytest.raises(AdapterError, match="its source: it leads to plain http") as raised:
        fetch_adapter(HttpsSource(f"{hub.url}/plain/org/adapter/"), tmp_path, LIMITS)
    assert "192.0.2.1" not in str(raised.value)
    elsewhere = Downloader("https://example.org/", Watch(error=lambda where, why: AdapterError(why)))
    with closing(elsewhere), pytest.raises(AdapterError, match="it leads to plain http"):
        elsewhere.ask(f"{hub.url}/plain/org/adapter/{CONFIG}")
    assert hub.requests.total() == 1


def test_redirects_without_an_end_are_an_error(hub, tmp_path):
    hub.faults.statuses = [(302, {"location": f"{hub.url}/plain/org/adapter/{CONFIG}"})] * 99
    with pytest.raises(AdapterError, match=rf"{CONFIG}: it cannot be fetched \(TooManyRedirects\)"):
        fetch_adapter(HttpsSource(f"{hub.url}/plain/org/adapter/"), tmp_path, LIMITS)


def test_a_server_that_answers_get_only_is_asked_so(hub, tmp_path):
    hub.faults.statuses = [(405, {})]
    fetch_adapter(HttpsSource(f"{hub.url}/plain/org/adapter/"), tmp_path, LIMITS)
    assert fetched(tmp_path) == FILES


def test_a_file_that_the_hub_sends_otherwise_than_it_lists_it_is_an_error(hub, tmp_path):
    hub.faults.flips = 1
    with pytest.raises(AdapterError, match=f"{TENSORS}: it does not have the digest"):
        fetch_adapter(HubSource("org/adapter", "main"), tmp_path, LIMITS)
    assert not (tmp_path / TENSORS).exists()


def test_a_server_that_closes_ends_a_download_under_way(hub, source, tmp_path):
    limits = FetchLimits(100_000, 60, lambda: hub.sent > 2)
    with pytest.raises(AdapterError, match="the server was closed"):
        fetch_adapter(source, tmp_path, limits)
    assert "chat_template.jinja" not in fetched(tmp_path)


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
