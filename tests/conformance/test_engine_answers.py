"""Deltas join to the whole text, the last has a finish reason, and the counts are right."""

from __future__ import annotations

import pytest

from serving.engine import Engine
from serving.types import CHOSEN, FinishReason
from tests.conformance.asking import PROMPTS, answer, answers, ask
from tests.conformance.kinds import MAX_MODEL_LEN, Kind

UNICODE = [
    "你好，世界",
    "🙂🙃👩‍👩‍👧",
    "naïve café",
    "Привет",
    "e\u0301 combining",
    "\u202eright to left",
    "\x00\x01 control",
]


async def test_deltas_join_to_the_text_of_the_tokens(engine: Engine, kind: Kind) -> None:
    for whole in await answers(engine, [ask(kind.tokenizer, prompt) for prompt in PROMPTS[:8]]):
        assert whole.text == kind.tokenizer.decode(whole.token_ids)
        assert 1 <= len(whole.token_ids) <= 24


async def test_an_answer_is_streamed(engine: Engine, kind: Kind) -> None:
    whole = await answer(engine, ask(kind.tokenizer, grammar="start: /[a-z ]{300}/", max_tokens=60))
    assert len(whole.deltas) >= 3


@pytest.mark.parametrize("prompt", UNICODE)
async def test_prompts_may_have_any_script_and_deltas_have_whole_characters(
    engine: Engine, kind: Kind, prompt: str
) -> None:
    whole = await answer(engine, ask(kind.tokenizer, prompt))
    assert whole.text == kind.tokenizer.decode(whole.token_ids)
    grammar = 'start: "你好🙂é" /[あ-ん]{3}/'
    whole = await answer(engine, ask(kind.tokenizer, prompt, grammar=grammar, max_tokens=60))
    assert whole.text.startswith("你好🙂é") and len(whole.text) == 7
    for delta in whole.deltas:
        assert "\ufffd" not in delta.text


async def test_max_tokens_of_one_gives_one_token(engine: Engine, kind: Kind) -> None:
    whole = await answer(engine, ask(kind.tokenizer, grammar='start: "several tokens"', max_tokens=1))
    assert (len(whole.token_ids), whole.finish_reason) == (1, FinishReason.LENGTH)


async def test_max_tokens_truncates_an_answer_with_finish_reason_length(engine: Engine, kind: Kind) -> None:
    grammar = "start: /[a-z ]{300}/"
    short = await answer(engine, ask(kind.tokenizer, grammar=grammar, max_tokens=7))
    longer = await answer(engine, ask(kind.tokenizer, grammar=grammar, max_tokens=14))
    assert (len(short.token_ids), short.finish_reason) == (7, FinishReason.LENGTH)
    assert longer.token_ids[:7] == short.token_ids


async def test_the_end_token_finishes_with_stop_and_is_not_in_the_text(engine: Engine, kind: Kind) -> None:
    """Sampled with several seeds, so that some answer ends, whatever the model."""
    requests = [
        ask(kind.tokenizer, seed=seed, temperature=1.0, max_tokens=80, prompt='Answer "yes" or "no": ')
        for seed in range(8)
    ]
    ended = [whole for whole in await answers(engine, requests) if whole.finish_reason is FinishReason.STOP]
    assert ended
    for whole in ended:
        assert not set(whole.token_ids) & set(kind.tokenizer.eos_token_ids)
        assert whole.text == kind.tokenizer.decode(whole.token_ids)


async def test_metrics_count_prompt_and_output_tokens(engine: Engine, kind: Kind) -> None:
    request = ask(kind.tokenizer, grammar="start: /[a-z ]{300}/", max_tokens=20)
    metrics = (await answer(engine, request)).metrics
    assert metrics.output_token_count == 20
    assert metrics.model_passes >= 1
    if kind.counts_drafts:
        assert metrics.output_token_count <= metrics.model_passes + metrics.accepted_token_count
    assert 0 <= metrics.accepted_token_count <= metrics.draft_token_count
    assert 0 <= metrics.cached_token_count <= metrics.input_token_count
    assert metrics.time_to_first_token is not None
    assert 0 < metrics.time_to_first_token <= metrics.total_time
    assert metrics.tokens_per_second == pytest.approx(20 / metrics.total_time)
    if metrics.passes:  # of engines that know them
        sources = [source for one in metrics.passes for source in one.sources]
        assert len(sources) == 20
        assert sources.count(CHOSEN) == 20 - metrics.accepted_token_count
        assert sum(metrics.drafted_by_kind.values()) == metrics.draft_token_count
        assert sum(metrics.accepted_by_kind.values()) == metrics.accepted_token_count
        times = [one.at for one in metrics.passes]
        assert times == sorted(times)
        assert times[-1] <= metrics.total_time


async def test_a_prompt_that_leaves_room_for_one_token_gets_one(engine: Engine, kind: Kind) -> None:
    prompt = kind.tokenizer.encode("x " * MAX_MODEL_LEN)
    for room in (1, 4):
        request = ask(kind.tokenizer, grammar="start: /[a-z ]{300}/", max_tokens=100)
        whole = await answer(engine, _with_prompt(request, prompt[: MAX_MODEL_LEN - room]))
        assert (len(whole.token_ids), whole.finish_reason) == (room, FinishReason.LENGTH)


@pytest.mark.parametrize("length", [1, 2, 3])
async def test_stop_strings_end_the_text_and_are_not_in_it(engine: Engine, kind: Kind, length: int) -> None:
    whole = (await answer(engine, ask(kind.tokenizer, max_tokens=20))).text
    starts = [start for start in range(0, len(whole) - length, 3) if "\ufffd" not in whole[start : start + length]]
    assert starts
    stops = [whole[start : start + length] for start in starts]
    requests = [ask(kind.tokenizer, max_tokens=20, stop=(stop, "never to be seen")) for stop in stops]
    for stop, cut in zip(stops, await answers(engine, requests), strict=True):
        assert cut.text == whole[: whole.index(stop)]
        assert cut.finish_reason is FinishReason.STOP
        assert kind.tokenizer.decode(cut.token_ids).startswith(cut.text + stop)


async def test_a_stop_string_that_does_not_occur_changes_nothing(engine: Engine, kind: Kind) -> None:
    """Although text that could be its beginning is held back for a while."""
    default = await answer(engine, ask(kind.tokenizer))
    stop = tuple(default.text[start : start + 4] + "\x07" for start in range(min(len(default.text), 64)))
    assert (await answer(engine, ask(kind.tokenizer, stop=stop))).text == default.text


def _with_prompt(request, prompt: list[int]):
    return type(request)(request.request_id, tuple(prompt), request.sampling, request.constraint, request.adapter)
