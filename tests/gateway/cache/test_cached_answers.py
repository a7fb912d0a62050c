"""Equal greedy requests get the kept answer through every API, and nobody learns of another key's predictions."""

from __future__ import annotations

import json

import pytest

from gateway.settings import SettingsError
from tests.gateway.fake_cog import FakeCog
from tests.gateway.open_app import CACHE, CREATE, bearer, create, make_keys, open_app
from tests.gateway.running import until

PROPERTIES = {"text": {"type": "string"}, "temperature": {"type": "number", "default": 0.0}}
TRACE = [{"tokens": ["a", "b", "c"]}]
SAME = {"input_token_count": 5, "output_token_count": 3, "finish_reason": "stop", "token_trace": TRACE}
METRICS = {**SAME, "model_passes": 2, "tokens_per_second": 50, "time_to_first_token": 0.5, "predict_time": 1.0}


def opened_cog(**options) -> FakeCog:
    cog = FakeCog(properties=PROPERTIES, end={"logs": "a note\n", "metrics": METRICS}, **options)
    cog.schema["components"]["schemas"]["Input"]["required"] = ["text"]
    return cog


async def test_the_second_equal_request_is_a_prediction_of_its_own_with_the_first_one_s_answer(tmp_path):
    async with opened_cog() as cog, open_app(tmp_path, cog, **CACHE) as client:
        first = await create(client, text="hello")
        second = await create(client, text="hello", temperature=0)
        assert cog.asked == [first["id"]]
        assert first["metrics"]["cached"] is False
        assert second["id"] != first["id"]
        assert (second["status"], second["output"], second["logs"]) == ("succeeded", ["a", "b", "c"], "a note\n")
        metrics = second["metrics"]
        assert metrics.pop("total_time") >= 0
        assert metrics == {**SAME, "cached_token_count": 5, "cached": True, "cached_from": first["id"]}
        kept = (await client.get(f"/v1/predictions/{second['id']}")).json()
        assert {**kept, "metrics": None} == {**second, "metrics": None}
        assert kept["input"] == {"text": "hello", "temperature": 0}
        assert kept["started_at"] <= kept["completed_at"]
        third = await create(client, text="hello")
        assert third["metrics"]["cached_from"] == first["id"], "not the copy"
        assert len((await client.get("/v1/predictions")).json()["results"]) == 3


async def test_without_the_setting_every_request_is_answered_by_the_model(tmp_path):
    async with opened_cog() as cog, open_app(tmp_path, cog, weights_digest="d" * 64) as client:
        assert ["cached" in (await create(client))["metrics"] for _ in range(2)] == [False, False]
        assert len(cog.asked) == 2
        assert (await client.get("/ready")).json()["cache"] is False


async def test_sampled_failed_and_different_requests_are_not_answered_from_the_cache(tmp_path):
    async with opened_cog() as cog, open_app(tmp_path, cog, **CACHE) as client:
        for inputs in ({"text": "a", "temperature": 0.5}, {"text": "a"}, {"text": "b"}):
            await create(client, **inputs)
        await create(client, text="a", temperature=0.5)
        assert len(cog.asked) == 4
        cog.end = {"status": "failed", "error": "no"}
        assert [(await create(client, text="c"))["status"] for _ in range(2)] == ["failed", "failed"]
        assert len(cog.asked) == 6


async def test_other_weights_have_other_answers_and_the_same_ones_are_found_after_a_restart(tmp_path):
    async with opened_cog() as cog:
        for digest, num_asked in (("d", 1), ("d", 1), ("e", 2), ("d", 2)):
            async with open_app(tmp_path, cog, **CACHE | {"weights_digest": digest}) as client:
                await create(client)
                assert len(cog.asked) == num_asked


async def test_streams_from_the_cache_are_complete_in_both_apis(tmp_path):
    chat = {"model": "model", "messages": [{"role": "user", "content": "hello"}]}
    async with opened_cog() as cog, open_app(tmp_path, cog, **CACHE) as client:
        await create(client, text="hello")
        second = await create(client, text="hello")
        events = (await client.get(f"/v1/predictions/{second['id']}/stream")).text.split("\n\n")
        kinds = [(event.partition("\n")[0], event.rpartition("data: ")[2]) for event in events if event]
        assert [kind for kind in kinds if kind[0] == "event: output"] == [("event: output", text) for text in "abc"]
        assert kinds[-1] == ("event: done", "{}")
        whole = (await client.post("/v1/chat/completions", json=chat)).json()
        assert whole["choices"][0]["message"]["content"] == "abc"
        assert whole["choices"][0]["finish_reason"] == "stop"
        assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == whole["usage"]["prompt_tokens"] == 5
        streamed = await client.post("/v1/chat/completions", json=chat | {"stream": True})
        chunks = [json.loads(line[6:]) for line in streamed.text.split("\n\n") if line.startswith("data: {")]
        assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "abc"
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        assert len(cog.asked) == 1, "an OpenAI message has the same inputs as a Replicate request"


async def test_a_caller_can_ask_for_a_new_answer_or_that_none_is_kept(tmp_path):
    async with opened_cog() as cog, open_app(tmp_path, cog, **CACHE) as client:
        unkept = await create(client, {"Cache-Control": "no-store"})
        assert "cached" not in unkept["metrics"]
        first = await create(client)
        assert first["metrics"]["cached"] is False
        new = await create(client, {"Cache-Control": "no-cache"})
        assert new["metrics"]["cached"] is False
        assert (await create(client))["metrics"]["cached_from"] == new["id"]
        assert len(cog.asked) == 3


async def test_a_key_gets_only_its_own_answers(tmp_path):
    alice, bob = map(bearer, make_keys(tmp_path, "alice", "bob").values())
    async with opened_cog() as cog, open_app(tmp_path, cog, keys="required", **CACHE) as client:
        first = await create(client, alice)
        assert (await create(client, bob))["metrics"]["cached"] is False
        again = await create(client, alice)
        assert again["metrics"]["cached_from"] == first["id"]
        page = (await client.get(f"/p/{again['id']}")).text
        assert "cached" in page
        assert first["id"] not in page, "the page needs no key"
        assert (await client.get(f"/v1/predictions/{again['id']}", headers=bob)).status_code == 404


async def test_a_shared_cache_does_not_name_another_key_s_prediction(tmp_path):
    alice, bob = map(bearer, make_keys(tmp_path, "alice", "bob").values())
    async with opened_cog() as cog, open_app(tmp_path, cog, keys="required", cache_shared=True, **CACHE) as client:
        first = await create(client, alice)
        copy = await create(client, bob)
        assert copy["metrics"]["cached"] is True
        assert first["id"] not in json.dumps(copy)
        assert (await create(client, alice))["metrics"]["cached_from"] == first["id"]


async def test_limits_of_a_key_count_answers_from_the_cache(tmp_path):
    rare = bearer(make_keys(tmp_path, "rare", per_minute=2)["rare"])
    async with opened_cog() as cog, open_app(tmp_path, cog, keys="required", **CACHE) as client:
        statuses = [(await client.post(CREATE, json={"input": {"text": "a"}}, headers=rare)).status_code for _ in "abc"]
        assert statuses == [201, 201, 429]


async def test_answers_are_given_while_all_servers_are_full(tmp_path):
    async with opened_cog() as cog, open_app(tmp_path, cog, max_active=1, **CACHE) as client:
        await create(client)
        cog.gate.clear()
        await client.post(CREATE, json={"input": {"text": "other"}})
        assert (await client.post(CREATE, json={"input": {"text": "third"}})).status_code == 429
        assert (await create(client))["metrics"]["cached"] is True


async def test_hits_and_misses_are_counted_and_hits_cost_no_tokens(tmp_path):
    async with opened_cog() as cog, open_app(tmp_path, cog, **CACHE) as client:
        for text in ("a", "a", "b", "a"):
            await create(client, text=text)
        await create(client, text="a", temperature=1)
        values = {}

        async def are_counted():  # answers do not wait for metrics
            text = (await client.get("/metrics")).text
            lines = [line for line in text.splitlines() if 'model_name="local/model"' in line]
            values.update({line.split("{")[0]: float(line.split()[-1]) for line in lines})
            return values.get("gateway_predictions_total") == 5

        await until(are_counted)
        assert (values["gateway_cache_hits_total"], values["gateway_cache_misses_total"]) == (2, 2)
        assert values["gateway_cache_bytes"] > 100
        assert (values["gateway_predictions_total"], values["vllm:request_success_total"]) == (5, 5)
        assert values["vllm:generation_tokens_total"] == 9
        assert values["vllm:e2e_request_latency_seconds_count"] == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cache_mb": 1}, "GATEWAY_CACHE_MB: .* does not know their digest"),
        ({"cache_mb": 1, "weights_digest": ""}, "GATEWAY_WEIGHTS_DIGEST"),
        ({"cache_mb": 1, "weights_digest": "d", "keep": False}, "GATEWAY_KEEP=false"),
        ({"cache_days": 1}, "GATEWAY_CACHE_DAYS: there is no cache"),
        ({"cache_shared": True}, "GATEWAY_CACHE_SHARED: there is no cache"),
        (
            {"cache_shared": True, "cache_mb": 1, "weights_digest": "d"},
            "GATEWAY_CACHE_SHARED: .* GATEWAY_KEYS",
        ),
    ],
)
async def test_a_cache_that_cannot_work_is_refused(tmp_path, settings, message):
    async with FakeCog() as cog:
        with pytest.raises(SettingsError, match=message):
            async with open_app(tmp_path, cog, **settings):
                pass
