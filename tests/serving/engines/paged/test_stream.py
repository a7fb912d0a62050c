"""Events become deltas in the reader's event loop: truncated at a stop string, complete at the end, in order."""

import asyncio
import threading

import pytest

from serving.engines.paged.stream import DeltaBuilder, StepEvent, Stream
from serving.errors import EngineDeadError
from serving.types import FinishReason, RequestMetrics
from tests.tiny_tokenizers import byte_level

TOKENIZER = byte_level()


def event(text: str | bytes, reason: FinishReason | None = None) -> StepEvent:
    """Tokens of one byte each, so that a test can cut anywhere."""
    data = text.encode() if isinstance(text, str) else text
    token_of = {TOKENIZER.token_bytes(i): i for i in reversed(range(TOKENIZER.vocab_size))}
    metrics = RequestMetrics(9, 99, 1, 0, 0.1, 0.2)
    return StepEvent(tuple(token_of[bytes([byte])] for byte in data), reason, metrics)


def test_a_stop_string_in_the_middle_of_a_step_cuts_text_tokens_and_count():
    follower = DeltaBuilder(TOKENIZER, ("END",))
    assert follower.push(event("ab")).text == "ab"
    held = follower.push(event("cE"))
    assert (held.text, len(held.token_ids), held.finish_reason, held.metrics) == ("c", 2, None, None)
    last = follower.push(event("NDxyz"))
    assert (last.text, len(last.token_ids), last.finish_reason) == ("", 2, FinishReason.STOP)
    assert last.metrics is not None
    assert last.metrics.output_token_count == 6


def test_a_stop_string_in_the_last_step_gives_finish_reason_stop():
    last = DeltaBuilder(TOKENIZER, ("END",)).push(event("abEND", FinishReason.LENGTH))
    assert (last.text, last.finish_reason) == ("ab", FinishReason.STOP)


@pytest.mark.parametrize(("tail", "text"), [("EN", "EN"), ("é".encode()[:1], "\ufffd")])
def test_text_that_was_held_back_is_in_the_last_delta(tail, text):
    follower = DeltaBuilder(TOKENIZER, ("END",))
    assert follower.push(event("a")).text == "a"
    assert follower.push(event(tail)).text == ""
    assert follower.push(StepEvent((), FinishReason.LENGTH, None)).text == text


async def test_events_cross_from_another_thread_in_order_and_errors_are_raised():
    stream = Stream("a")
    sent = [event("a"), event("b"), EngineDeadError("gone")]
    thread = threading.Thread(target=lambda: [Stream.send([(stream, item)]) for item in sent])
    thread.start()
    assert await stream.receive(patience=5) == sent[0]
    assert await stream.receive(patience=5) == sent[1]
    with pytest.raises(EngineDeadError, match="gone"):
        await stream.receive(patience=5)
    thread.join()
    assert await stream.receive(patience=0.01) is None


def test_streams_of_a_closed_loop_are_reported():
    async def make() -> Stream:
        return Stream("a")

    stream = asyncio.run(make())
    assert Stream.send([(stream, event("a"))]) == [stream]
