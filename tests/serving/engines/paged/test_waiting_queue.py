"""Waiting requests: preempted ones first, then one of each adapter in turn."""

from __future__ import annotations

from serving.engines.paged.request import Request
from serving.engines.paged.waiting_queue import WaitingQueue
from serving.types import GenerationRequest


def make_queue(text):
    """One request for each letter, whose adapter it is; "-" is the base."""
    requests = [
        Request(GenerationRequest(f"{letter}{i}", (1,), adapter=None if letter == "-" else letter), seed=0)
        for i, letter in enumerate(text)
    ]
    queue = WaitingQueue()
    for request in requests:
        queue.add(request)
    return queue, requests


def drain(queue):
    order = []
    while len(queue):
        head = queue.head
        assert queue.pop() is head
        order.append(head.request_id)
    return order


def test_adapters_take_turns_and_each_keeps_its_order():
    queue, requests = make_queue("aaaa-bb-")
    assert len(queue) == len(list(queue)) == len(requests)
    assert drain(queue) == ["a0", "-4", "b5", "a1", "-7", "b6", "a2", "a3"]


def test_without_adapters_it_is_first_come_first_served():
    assert drain(make_queue("----")[0]) == ["-0", "-1", "-2", "-3"]


def test_preempted_requests_come_first_and_removed_ones_not_at_all():
    queue, requests = make_queue("aab")
    first, second = queue.pop(), queue.pop()
    queue.put_back(second)
    queue.put_back(first)
    queue.remove(requests[1])
    assert drain(queue) == ["a0", "b2"]
    queue.put_back(first)
    queue.remove(first)
    assert not len(queue)
