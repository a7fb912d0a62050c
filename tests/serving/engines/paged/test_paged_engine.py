"""What the engine's `generate` yields: tokens, text, finish reasons, metrics and errors."""

import asyncio
import time

import pytest

from serving.drafting.drafter import Drafter
from serving.drafting.speculative import LinearCost, MeasuredCost
from serving.errors import (
    ContextLengthError,
    EngineBusyError,
    GrammarError,
    InvalidRequestError,
    UnknownAdapterError,
)
from serving.types import FinishReason, GenerationRequest
from tests.serving.engines.paged.paged_engines import (
    TOKENIZER,
    VOCAB,
    Answer,
    ask,
    collect,
    expected_tokens,
    make_engine,
    run,
)
from tests.serving.engines.paged.paged_fakes import make_prompt

JSON = 'start: "{\\"op\\": \\"" OP "\\"}"\nOP: "COUNT" | "SUM" | "COUNT_DISTINCT"\n'


class HistoryDrafter(Drafter):
    """Proposes the history model's tokens without a grammar, half of which are right with one."""

    def propose(self, request, max_tokens):
        right = list(expected_tokens(request.token_ids, max_tokens))
        return [t if (request.num_tokens + i) % 3 else 1 for i, t in enumerate(right)] + [2, 3]


def test_tokens_text_and_metrics_of_one_request():
    with make_engine() as parts:
        answer = run(parts.engine, ask("a", make_prompt(30)))
        assert answer.token_ids == expected_tokens(make_prompt(30))
        assert answer.text == TOKENIZER.decode(answer.token_ids)
        metrics = answer.metrics
        assert (metrics.input_token_count, metrics.model_passes) == (30, 20)
        assert 0 < metrics.time_to_first_token < metrics.total_time
        again = run(parts.engine, ask("a", make_prompt(30)))
        assert again.token_ids == answer.token_ids
        assert again.metrics.cached_token_count == 28
        assert parts.engine.stats().num_steps == 40
        assert parts.engine.stats().num_free_blocks == parts.engine.stats().num_blocks


def test_steps_report_the_time_of_each_part():
    with make_engine() as parts:
        begun = time.perf_counter()
        run(parts.engine, ask("a", make_prompt(30), max_tokens=3))
        seconds = parts.engine.stats().step_seconds
        took = time.perf_counter() - begun
        names = {"schedule, draft", "prefill", "decode", "grammar", "head", "sample", "update, send"}
        assert set(seconds) == names and min(seconds.values()) > 0
        assert sum(seconds.values()) < took


async def answers(parts, requests) -> list[Answer]:
    return await asyncio.gather(*(collect(parts.engine, request) for request in requests))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_seqs": 32, "max_num_batched_tokens": 512},
        {"max_num_batched_tokens": 16},
        {"num_blocks": 60, "max_num_seqs": 16, "prefix_caching": False},  # preempts
        {"drafter": HistoryDrafter(), "max_draft_tokens": 7, "num_blocks": 100},
    ],
)
@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.9, "top_p": 0.5},
        {
            "repetition_penalty": 1.5,
            "frequency_penalty": 0.4,
            "presence_penalty": -0.5,
            "min_tokens": 12,
            "logprobs": 3,
        },
        {"temperature": 0.8, "min_p": 0.2, "frequency_penalty": 1.0, "logprobs": 0},
    ],
)
async def test_an_answer_does_not_depend_on_load_memory_or_drafts(options, sampling):
    requests = [
        ask(
            str(i),
            make_prompt(5 + 3 * i, salt=i % 3),
            JSON if i % 4 == 0 else None,
            seed=i,
            **sampling,
        )
        for i in range(16)
    ]
    with make_engine(max_num_seqs=1, max_queue=20, max_num_batched_tokens=1000) as parts:
        alone = await answers(parts, requests)
    with make_engine(max_queue=20, **options) as parts:
        together = await answers(parts, requests)
        assert parts.blocks.num_free_blocks == parts.blocks.num_blocks
    assert [(a.text, a.token_ids, a.finish_reason, a.logprobs) for a in together] == [
        (a.text, a.token_ids, a.finish_reason, a.logprobs) for a in alone
    ]


def test_drafts_save_passes_and_a_step_is_one_delta():
    async def deltas(engine):
        return [d async for d in engine.generate(ask("a", make_prompt(9)))]

    with make_engine(drafter=HistoryDrafter(), max_draft_tokens=7) as parts:
        outputs = asyncio.run(deltas(parts.engine))
    metrics = outputs[-1].metrics
    assert len(outputs) == metrics.model_passes < 15
    assert metrics.draft_token_count > metrics.accepted_token_count >= 20 - metrics.model_passes
    assert metrics.drafted_by_kind == {"draft": metrics.draft_token_count}
    assert metrics.accepted_by_kind == {"draft": metrics.accepted_token_count}


def test_the_cost_of_rows_is_learned_from_all_steps_without_prompts():
    counted: list[int] = []

    class Cost(MeasuredCost):
        def add(self, *, rows: int, seconds: float) -> None:
            assert seconds > 0
            counted.append(rows)

    cost = Cost(LinearCost(0.1))
    with make_engine(drafter=HistoryDrafter(), max_draft_tokens=7, cost=cost) as parts:
        for name, length in (("a", 9), ("b", 1)):
            counted.clear()
            metrics = run(parts.engine, ask(name, make_prompt(length))).metrics
            assert len(counted) == metrics.model_passes - 1  # the first one has the prompt
            assert len(counted) < sum(counted) <= len(counted) + metrics.draft_token_count


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_is_obeyed_and_ends_the_answer_without_another_pass(temperature):
    with make_engine() as parts:
        for i in range(5):
            request = ask(str(i), make_prompt(5, i), JSON, temperature=temperature, max_tokens=99)
            answer = run(parts.engine, request)
            assert answer.text in {f'{{"op": "{op}"}}' for op in ("COUNT", "SUM", "COUNT_DISTINCT")}
            assert answer.finish_reason is FinishReason.STOP
            assert answer.metrics.model_passes == len(answer.token_ids)


def test_a_grammar_that_may_end_or_continue_ends_with_the_end_token():
    with make_engine() as parts:
        answer = run(parts.engine, ask("a", grammar="start: /[a-c]{2,5}/", temperature=1.0, seed=1, logprobs=0))
        assert answer.finish_reason is FinishReason.STOP
        assert 2 <= len(answer.text) <= 5


def test_max_tokens_and_context_end_with_length():
    with make_engine(max_model_len=30) as parts:
        for prompt, wanted, given in [((5, 6), 1, 1), (make_prompt(25), 20, 5), (make_prompt(29), 9, 1)]:
            answer = run(parts.engine, ask("a", prompt, max_tokens=wanted))
            assert answer.finish_reason is FinishReason.LENGTH
            assert len(answer.token_ids) == given


@pytest.mark.parametrize("drafted", [False, True])
def test_a_stop_string_ends_text_and_tokens_at_the_same_position(drafted):
    tokens = expected_tokens(make_prompt(9))
    text = TOKENIZER.decode(tokens)
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    options = {"drafter": HistoryDrafter(), "max_draft_tokens": 7} if drafted else {}
    with make_engine(**options) as parts:
        answer = run(parts.engine, ask("a", make_prompt(9), stop=(stop,), logprobs=1))
        assert answer.finish_reason is FinishReason.STOP
        assert answer.text == text[: text.index(stop)]
        upto = next(n for n in range(len(tokens)) if stop in TOKENIZER.decode(tokens[:n]))
        assert answer.token_ids == tokens[:upto]


def test_equal_seeds_give_equal_samples_and_no_seed_a_new_one():
    with make_engine() as parts:
        texts = [run(parts.engine, ask("a", temperature=1.0, seed=s)).text for s in (0, 0, 1, None, None)]
        assert texts[0] == texts[1]
        assert len(set(texts)) == 4


@pytest.mark.parametrize(
    ("request_", "error", "says"),
    [
        (ask("a", ()), InvalidRequestError, "no tokens"),
        (ask("a", (VOCAB,)), InvalidRequestError, str(VOCAB)),
        (ask("a", range(1, 101)), ContextLengthError, "100"),
        (ask("a", range(1, 61), max_tokens=200), ContextLengthError, "25 KV blocks of 4 .* there are 20"),
        (ask("a", max_tokens=0), InvalidRequestError, "max_tokens"),
        (ask("a", temperature=-1.0), InvalidRequestError, "temperature"),
        (ask("a", grammar="start: missing"), GrammarError, "missing"),
        (GenerationRequest("a", (1,), adapter="nobody"), UnknownAdapterError, "nobody"),
    ],
)
def test_an_invalid_request_is_refused_and_holds_no_blocks(request_, error, says):
    with make_engine(num_blocks=20, max_model_len=100) as parts:
        with pytest.raises(error, match=says):
            run(parts.engine, request_)
        assert parts.core.num_in_flight == 0
        assert run(parts.engine, ask("a")).token_ids == expected_tokens((5, 6, 7))


async def test_requests_as_large_as_the_cache_finish_by_preemption():
    with make_engine(num_blocks=20, max_model_len=81) as parts:
        requests = [ask(str(i), make_prompt(30, i), max_tokens=51) for i in range(3)]
        for request, answer in zip(requests, await answers(parts, requests), strict=True):
            assert answer.token_ids == expected_tokens(request.prompt_token_ids, 51)


async def test_a_full_queue_refuses_at_once_and_accepts_requests_again_later():
    with make_engine(max_num_seqs=2, max_queue=3) as parts:
        parts.runner.gate.clear()
        tasks = [asyncio.create_task(collect(parts.engine, ask(str(i)))) for i in range(5)]
        await asyncio.sleep(0.05)
        with pytest.raises(EngineBusyError, match="5 requests"):
            await asyncio.wait_for(collect(parts.engine, ask("more")), 1)
        stats = parts.engine.stats()
        assert 1 <= stats.num_running <= 2  # the blocked step may have taken one already
        assert stats.num_running + stats.num_waiting == 5
        parts.runner.gate.set()
        await asyncio.gather(*tasks)
        await collect(parts.engine, ask("more"))


async def test_an_id_can_be_used_again_only_after_its_request():
    with make_engine() as parts:
        parts.runner.gate.clear()
        task = asyncio.create_task(collect(parts.engine, ask("a")))
        await asyncio.sleep(0.05)
        with pytest.raises(InvalidRequestError, match="in flight"):
            await collect(parts.engine, ask("a"))
        parts.runner.gate.set()
        await task
        await collect(parts.engine, ask("a"))


def test_it_serves_several_event_loops():
    with make_engine() as parts:
        for i in range(3):  # each `run` is a loop of its own
            assert run(parts.engine, ask(str(i))).token_ids == expected_tokens((5, 6, 7))
