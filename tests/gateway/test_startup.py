"""A gateway that cannot start says why and leaves nothing behind that would keep its process alive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from gateway.gateway import open_gateway
from gateway.predictions.store import Store
from gateway.settings import GatewaySettings, SettingsError

CACHE = {"cache_mb": 1, "weights_digest": "d" * 64}


@pytest.fixture
def check_threads() -> Iterator[Callable[[], None]]:
    """Checks that no thread is left of those that were started since."""
    before = set(threading.enumerate())

    def check() -> None:
        new = set(threading.enumerate()) - before
        for thread in new:
            thread.join(5)
        assert [thread for thread in new if thread.is_alive()] == []

    return check


@pytest.mark.parametrize("part", ["Upstream", "open_cache", "Runner", "KeyFile", "Pool.start"])
async def test_what_was_open_is_closed_when_a_part_cannot_start(tmp_path, monkeypatch, check_threads, part):
    def fail(*_: object, **__: object) -> None:
        raise ValueError("a part is broken")

    monkeypatch.setattr(f"gateway.gateway.{part}", fail)
    settings = GatewaySettings(database=tmp_path / "gateway.sqlite", keys="required", **CACHE)
    with pytest.raises(ValueError, match="a part is broken"):
        async with open_gateway(settings):
            pass
    check_threads()


async def test_a_file_that_is_no_database_is_closed(tmp_path, check_threads):
    path = tmp_path / "gateway.sqlite"
    path.write_text("no database" * 1000)
    with pytest.raises(Exception, match="not a database"):
        await Store(path).open()
    check_threads()
    path.unlink()
    again = Store(path)
    await again.open()
    await again.close()


def test_an_old_name_of_a_variable_is_refused_with_the_new_one(monkeypatch):
    monkeypatch.setenv("DOOR_KEYS", "required")
    with pytest.raises(SettingsError, match="DOOR_KEYS: this setting is called GATEWAY_KEYS now"):
        GatewaySettings().check()


def test_a_folder_of_kept_predictions_of_an_earlier_version_stays_in_use(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(GatewaySettings().database) == ".gateway/predictions.sqlite"
    (tmp_path / ".door").mkdir()
    assert str(GatewaySettings().database) == ".door/predictions.sqlite"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cache_days", 1_000_000, "cache_days"),
        ("upstreams", "http://127.0.0.1:99999", "'http://127.0.0.1:99999' is not an address .*out of range"),
        ("upstreams", "http://127.0.0.1:1,http://[::1", "'http://\\[::1' is not an address"),
        ("upstreams", "http://", "'http:' is not an address"),
        ("upstreams", "127.0.0.1:5000", "'127.0.0.1:5000' is not an address"),
        *(("hosts", f"one.example,{name}", "hosts") for name in ("https://gateway.example", "gateway.example:80", "")),
        ("upstreams", "http://user:secret@host:x", "value error, 'host:x' is not an address"),
    ],
)
def test_values_with_which_no_gateway_starts_are_refused(name, value, message):
    with pytest.raises(ValueError, match=f"(?i){message}"):
        GatewaySettings(**{name: value})
