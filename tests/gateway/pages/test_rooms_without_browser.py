"""What the pages beside the playground answer to who has no key or no README."""

from __future__ import annotations

from tests.gateway.fake_cog import FakeCog
from tests.gateway.open_app import bearer, make_keys, open_app


async def test_a_gateway_without_a_readme_says_so_and_a_wrong_one_is_an_error(tmp_path):
    async with FakeCog() as cog:
        async with open_app(tmp_path, cog) as client:
            assert "GATEWAY_README" in (await client.get("/readme")).text
        async with open_app(tmp_path, cog, readme=tmp_path / "none.md") as client:
            response = await client.get("/readme")
            assert (response.status_code, "none.md cannot be read" in response.text) == (500, True)


async def test_who_has_no_key_is_sent_to_the_login(tmp_path):
    keys = make_keys(tmp_path, "alice")
    async with FakeCog() as cog, open_app(tmp_path, cog, keys="required") as client:
        for path in ("/api", "/readme"):
            assert (await client.get(path)).headers["location"] == "/login"
            assert (await client.get(path, headers=bearer(keys["alice"]))).status_code == 200
