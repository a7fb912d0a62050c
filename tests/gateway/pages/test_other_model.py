"""Pages of predictions that another model or version answered."""

from __future__ import annotations

from tests.gateway.fake_cog import FakeCog
from tests.gateway.open_app import create, open_app


async def test_a_page_of_another_model_says_so_and_tweak_says_which_inputs_do_not_fit(tmp_path):
    async with FakeCog() as first, open_app(tmp_path, first) as client:
        prediction = await create(client, text="what was asked")
    properties = {"prompt": {"type": "string"}}
    async with (
        FakeCog(properties=properties) as second,
        open_app(tmp_path, second, model="some/second") as client,
    ):
        page = (await client.get(f"/p/{prediction['id']}")).text
        assert "created by a different version" in page and "Run on today's version" in page.replace("&#39;", "'")
        tweaked = (await client.get("/", params={"tweak": prediction["id"]})).text
        assert "local/model was asked with text, which some/second does not have." in tweaked
        assert "what was asked" not in tweaked
