"""A candidate is asked without the callers' noticing; what differs is kept as long as the prediction, for its owner."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from gateway.keys.key_file import KeyFile
from gateway.predictions.prediction import new_id
from gateway.settings import SettingsError
from gateway.shadow.shadow import MAX_ASKED, canonical, is_chosen
from tests.gateway.fake_cog import FakeCog
from tests.gateway.open_app import CACHE, bearer, create, make_keys, open_app
from tests.gateway.running import until

TIMED = {"metrics": {"predict_time": 1.0}}
PROPERTIES = {"text": {"type": "string"}, "temperature": {"type": "number", "default": 0.0}}


def cog(text: str, **options: object) -> FakeCog:
    """A server that answers this text."""
    return FakeCog(pieces=(text,), properties=PROPERTIES, **{"end": TIMED, **options})


def to(candidate: FakeCog, **settings: object) -> dict[str, object]:
    return {"shadow": candidate.url, "shadow_share": 1, **settings}


async def outcomes(client: httpx.AsyncClient, headers: dict[str, str] | None = None) -> dict[str, int]:
    """How often the candidate was asked with which outcome."""
    lines = (await client.get("/metrics", headers=headers)).text.splitlines()
    found = [line.split() for line in lines if line.startswith("gateway_shadow_total{")]
    return {name.split('outcome="')[1].rstrip('"}'): int(float(value)) for name, value in found}


async def counted(client: httpx.AsyncClient, number: int, headers: dict[str, str] | None = None) -> dict[str, int]:
    """The same once so many have ended."""

    async def are_there() -> bool:
        return sum((await outcomes(client, headers)).values()) >= number

    await until(are_there)
    return await outcomes(client, headers)


async def page(client: httpx.AsyncClient, headers: dict[str, str] | None = None) -> str:
    response = await client.get("/shadow", headers=headers)
    assert response.status_code == 200
    return response.text


async def test_an_answer_that_differs_is_kept_and_one_that_says_the_same_is_not(tmp_path: Path):
    async with cog('{"a": 1, "b": [2]}') as served, cog('{"b": [2.0],"a":1}') as candidate:
        async with open_app(tmp_path, served, **to(candidate, shadow_name="mine-2")) as client:
            await create(client, text="first")
            assert await counted(client, 1) == {"same": 1}
            candidate.pieces = ('{"a": 1, "b": [3]}',)
            second = await create(client, text="second")
            assert second["output"] == list(served.pieces)
            assert await counted(client, 2) == {"same": 1, "different": 1}
            shown = await page(client)
            assert "mine-2" in shown and "second" in shown and f'href="/p/{second["id"]}"' in shown
            assert "first" not in shown.partition("</header>")[2].partition("<article")[2]
            assert candidate.requests[1][1]["input"] == {"text": "second"}
            assert candidate.asked[1] != second["id"]
        other = to(candidate, shadow_name="mine-3")
        async with open_app(tmp_path, served, **other) as client:
            assert "second" not in await page(client)
        async with open_app(tmp_path, served, **to(candidate, shadow_name="mine-2")) as client:
            assert "second" in await page(client)
            await client.delete(f"/v1/predictions/{second['id']}")
            assert "No answers differ so far" in await page(client)


async def test_pairs_of_examples_come_first(tmp_path: Path):
    examples = {"examples": [{"title": "One", "input": {"text": "of the playground"}}]}
    (tmp_path / "playground.json").write_text(json.dumps(examples))
    own = {"playground": tmp_path / "playground.json"}
    async with (
        cog("yes") as served,
        cog("no") as candidate,
        open_app(tmp_path, served, **to(candidate), **own) as client,
    ):
        kept = await create(client, text="kept", temperature=0)
        await counted(client, 1)
        body = {"prediction": kept["id"], "kind": "example"}
        assert (await client.post("/v1/corrections", json=body)).status_code == 201
        for number, text in enumerate(("of the playground", "kept", "plain"), 2):
            await create(client, text=text)
            await counted(client, number)
        cards = (await page(client)).split("<article")[1:]
        assert ['class="tag"' in card for card in cards] == [True, True, False, False]
        assert "kept" in cards[0] and "of the playground" in cards[1] and "plain" in cards[2]


async def test_a_key_sees_its_own_pairs_and_an_admin_all(tmp_path: Path):
    keys = make_keys(tmp_path, "alice", "bob")
    with closing(KeyFile(tmp_path / "keys.sqlite")) as file:
        admin = bearer(file.create("admin", is_admin=True))
    async with (
        cog("yes") as served,
        cog("no") as candidate,
        open_app(tmp_path, served, keys="required", **to(candidate)) as client,
    ):
        for name in ("alice", "bob"):
            await create(client, bearer(keys[name]), text=f"secret of {name}")
        await counted(client, 2, admin)
        seen = {name: await page(client, bearer(key)) for name, key in keys.items()} | {
            "admin": await page(client, admin)
        }
        assert ["secret of alice" in seen[name] for name in ("alice", "bob", "admin")] == [True, False, True]
        assert ["secret of bob" in seen[name] for name in ("alice", "bob", "admin")] == [False, True, True]
        assert ["2 different" in seen[name] for name in ("alice", "bob", "admin")] == [False, False, True]
        assert (await client.get("/shadow")).headers["location"] == "/login"


async def test_a_failure_of_the_candidate_never_reaches_the_caller(tmp_path: Path):
    failed = {"status": "failed", "error": "no <room>", **TIMED}
    async with (
        cog("yes") as served,
        cog("no", end=failed) as candidate,
        open_app(tmp_path, served, **to(candidate)) as client,
    ):
        assert (await create(client, text="one"))["output"] == ["yes"]
        assert await counted(client, 1) == {"different": 1}
        assert "no &lt;room&gt;" in await page(client)
        candidate.break_after = 0
        assert (await create(client, text="two"))["output"] == ["yes"]
        await counted(client, 2)
        await candidate.stop()
        assert (await create(client, text="three"))["output"] == ["yes"]
        last = await counted(client, 3)
        assert last.pop("different") == 1
        assert last.keys() <= {"failed", "dropped"} and sum(last.values()) == 2
        ended = (await client.get("/metrics")).text
        assert 'gateway_predictions_total{model_name="local/model",status="succeeded"} 3.0' in ended


async def test_what_a_slow_candidate_cannot_take_is_dropped(tmp_path: Path):
    async with (
        cog("yes") as served,
        cog("no", held=True) as candidate,
        open_app(tmp_path, served, **to(candidate)) as client,
    ):
        for _ in range(MAX_ASKED + 3):
            assert (await create(client, text="hello"))["status"] == "succeeded"
        assert await counted(client, 3) == {"dropped": 3}
        assert len(candidate.asked) == MAX_ASKED
        candidate.gate.set()
        assert await counted(client, MAX_ASKED + 3) == {"dropped": 3, "different": MAX_ASKED}


async def test_what_differs_by_chance_or_was_not_answered_by_the_model_is_not_asked(tmp_path: Path):
    async with (
        cog("yes") as served,
        cog("no") as candidate,
        open_app(tmp_path, served, **to(candidate), **CACHE) as client,
    ):
        await create(client, text="sampled", temperature=0.7)
        await create(client, text="hello")
        await counted(client, 1)
        assert (await create(client, text="hello"))["metrics"]["cached"] is True
        served.end = {"status": "failed", "error": "no", **TIMED}
        await create(client, text="fails")
        served.end = TIMED
        await create(client, text="last")
        await counted(client, 2)
        assert [body["input"]["text"] for _, body in candidate.requests] == ["hello", "last"]


async def test_a_gateway_that_keeps_nothing_keeps_no_pairs(tmp_path: Path):
    async with (
        cog("yes") as served,
        cog("no") as candidate,
        open_app(tmp_path, served, **to(candidate), keep=False) as client,
    ):
        await create(client, text="a secret")
        assert await counted(client, 1) == {"different": 1}
        shown = await page(client)
        assert "keeps nothing" in shown and "a secret" not in shown
    assert list(tmp_path.iterdir()) == []


async def test_settings_without_a_candidate_are_refused_and_the_page_says_that_there_is_none(tmp_path: Path):
    async with cog("yes") as served:
        for unused in ({"shadow_share": 0.5}, {"shadow_name": "mine"}):
            with pytest.raises(SettingsError, match="set GATEWAY_SHADOW too"):
                async with open_app(tmp_path, served, **unused):
                    pass
        async with open_app(tmp_path, served) as client:
            assert "No candidate is asked" in await page(client)


def test_the_share_is_that_of_all_predictions_and_each_is_chosen_or_not_for_ever():
    ids = [f"{number}" for number in range(4000)]
    assert sum(is_chosen(one, 0.25) for one in ids) == pytest.approx(1000, abs=100)
    assert all(is_chosen(one, 0.5) for one in ids if is_chosen(one, 0.25))
    assert is_chosen(new_id(), 1)


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ('{"a": 1, "b": 2}', '{"b":2.0, "a":1}', True),
        ("[1, 2]", "[2, 1]", False),
        ("1", "true", False),
        ("1e999", "1e999", True),
        ("words\n", "words", True),
        ("words", "other words", False),
        ('{"a": "1"}', '{"a": 1}', False),
        ("[" * 100_000, "[" * 100_000, True),
    ],
)
def test_answers_are_compared_by_what_they_say(first: str, second: str, is_same: bool):
    assert (canonical(first) == canonical(second)) is is_same
