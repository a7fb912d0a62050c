"""No webhook goes to the gateway or its servers, however their address is written."""

from __future__ import annotations

import json
import socket

import pytest

from gateway.http.webhook_client import WebhookClient, WebhookError, is_own
from gateway.settings import GatewaySettings
from tests.gateway.fake_cog import FakeCog

SETTINGS = GatewaySettings(port=8080, cog_port=5000, upstreams=("http://127.77.1.2:6000",))


def own_address() -> str:
    """The address of a network card of this machine, or loopback where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.1", "0.0.0.0", "127.9.9.9"])
async def test_every_name_of_this_machine_leads_to_the_gateway(host):
    for port in (8080, 5000):
        assert await is_own(f"http://{host}:{port}/shutdown", SETTINGS)
    assert not await is_own(f"http://{host}:8081/hook", SETTINGS)


@pytest.mark.parametrize("host", ["[::1]", "[::ffff:127.0.0.1]", "user:password@127.0.0.1", own_address()])
async def test_other_forms(host):
    assert await is_own(f"http://{host}:8080/", SETTINGS)


async def test_servers_are_known_by_their_addresses():
    assert await is_own("http://127.77.1.2:6000/shutdown", SETTINGS)
    assert await is_own("http://[::ffff:127.77.1.2]:6000/shutdown", SETTINGS)
    assert not await is_own("http://127.77.1.2:6001/", SETTINGS)


async def test_servers_of_a_file_those_before_and_a_candidate_are_known_too(tmp_path):
    file = tmp_path / "servers.json"
    settings = GatewaySettings(port=8080, servers_file=file, shadow="http://127.77.1.2:7000")
    for port in (6000, 6001):
        file.write_text(json.dumps({"upstreams": [f"http://127.77.1.2:{port}"]}))
        assert await is_own(f"http://127.77.1.2:{port}/shutdown", settings)
    file.unlink()
    for port, is_known in ((6000, True), (6001, True), (7000, True), (6002, False)):
        assert await is_own(f"http://127.77.1.2:{port}/shutdown", settings) is is_known


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "127.77.1.3", "[::ffff:0.0.0.0]", own_address()])
async def test_a_server_of_this_machine_may_listen_at_all_of_its_addresses(host):
    assert await is_own(f"http://{host}:6000/shutdown", SETTINGS)


async def test_the_public_address_is_the_gateway_s():
    settings = SETTINGS.model_copy(update={"public_url": "https://gateway.invalid"})
    assert await is_own("https://Gateway.invalid:443/v1/predictions", settings)
    assert not await is_own("https://hooks.invalid/", settings)


async def test_a_name_that_leads_elsewhere_after_it_was_checked_is_not_followed(monkeypatch):
    async with FakeCog() as receiver:
        settings = GatewaySettings(upstreams=(receiver.url,))
        found = iter(["192.0.2.7"])

        def change(host, port, *args, **kwargs):
            return real(next(found, "127.0.0.1") if host == "changes.example" else host, port, *args, **kwargs)

        real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", change)
        async with WebhookClient(settings) as client:
            with pytest.raises(WebhookError, match="address is the gateway's or a server's"):
                await client.post(f"http://changes.example:{receiver.port}/shutdown", b"{}", {})
        assert receiver.paths == []


@pytest.mark.parametrize("url", ["https://192.0.2.7:8080/hook", "http://nowhere.invalid:8080/", "no address"])
async def test_other_machines_and_unknown_names_are_not_this_gateway(url):
    assert not await is_own(url, SETTINGS)
