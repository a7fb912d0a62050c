"""Pages of predictions that another model or version answered."""

from __future__ import annotations

from tests.gateway.fake_cog import FakeCog
from tests.gateway.open_app import bearer, create, make_keys, open_app


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


async def test_the_page_of_versions_counts_what_the_caller_sees_and_names_the_one_that_is_served(tmp_path):
    alice, bob = make_keys(tmp_path, "alice", "bob").values()
    for digest, key, number in (("1" * 64, alice, 2), ("2" * 64, alice, 1), ("2" * 64, bob, 1)):
        async with FakeCog() as cog, open_app(tmp_path, cog, keys="required", weights_digest=digest) as client:
            for _ in range(number):
                await create(client, bearer(key))
            pages = {each: (await client.get("/versions", headers=bearer(each))).text for each in (alice, bob)}
            assert (await client.get("/versions")).headers["location"] == "/login"
    sections = [part.partition("</section>")[0] for part in pages[alice].split("<section")[1:]]
    assert ["served now" in section for section in sections] == [True, False]
    assert ["2" * 64 in sections[0], "1" * 64 in sections[1], "<dd>2</dd>" in sections[1]] == [True] * 3
    assert "1" * 64 not in pages[bob] and "<dd>1</dd>" in pages[bob]
