"""Measure one engine with many adapters: rates, cold adapters, memory, and a long run with a small cache."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import numpy as np

from lab.bench.lineup import EngineFailedError, EngineProcess
from lab.bench.peers import Peer, python_of
from lab.bench.protocol import Ask, Batch, Done, Reply
from lab.bench.questions import QuestionError
from pipeline.weights.atomic import write_json
from serving.adapters.registry import AdapterEntry
from serving.text import Tokenizer
from tasks.task import create_task

PARTS: Final = ("right", "rates", "cold", "long")
QUESTIONS: Final = "questions.jsonl"
HELD_OUT: Final = "held_out.jsonl"
_SECONDS: Final = 3600.0  # limit of one batch
_MB: Final = 10**6


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """How much is measured.

    Args:
        parts: what is measured, of `PARTS`.
        rounds: repetitions of the rates.
        counts: numbers of adapters that share one base; more than there are, as copies under other names.
        asked: requests in each measurement of a rate.
        users: concurrent requests.
        warm: requests beside cold adapters, each of which is asked once.
        cold: adapters that are asked for the first time.
        long: predictions of the long run, over the largest of `counts`.
        long_parts: after each the memory is measured.
        long_users: concurrent requests in it; each may hold an adapter, so they are fewer than `long_kept`.
        long_kept: adapters that fit in memory in it.
    """

    parts: tuple[str, ...] = PARTS
    rounds: int = 3
    counts: tuple[int, ...] = (8, 32, 128)
    asked: int = 512
    users: int = 32
    warm: int = 640
    cold: int = 40
    long: int = 10_000
    long_parts: int = 20
    long_users: int = 8
    long_kept: int = 16

    @staticmethod
    def quick() -> AdapterPlan:
        """Sizes to see that everything works."""
        return AdapterPlan(rounds=1, counts=(8, 16), asked=16, warm=16, cold=2, long=32, long_parts=2)


@dataclass(frozen=True)
class AdapterQuestions:
    """The requests of one adapter, without keys, and the right answers to those held out, as JSON values."""

    entry: AdapterEntry
    asks: tuple[Ask, ...]
    held_out: tuple[Ask, ...]
    answers: tuple[Any, ...]


def read_questions(entries: Mapping[str, AdapterEntry], base: Path) -> list[AdapterQuestions]:
    """The requests of all adapters of a list.

    Raises:
        QuestionError: an adapter has no questions or no folder.
        TaskError: a task or a question is wrong.
    """
    tokenizer = Tokenizer.from_dir(base)
    return [_read(entry, base, tokenizer) for entry in entries.values()]


def copies(questions: Sequence[AdapterQuestions], count: int) -> list[str]:
    """Names of `count` adapters: each in turn, under other names from the second time on."""
    names = [one.entry.name for one in questions]
    return [names[i % len(names)] + (f"-{i // len(names)}" if i >= len(names) else "") for i in range(count)]


def write_copies(questions: Sequence[AdapterQuestions], count: int, path: Path) -> Path:
    """Write the list of adapters that has the names of `copies`."""
    entries = [one.entry for one in questions]
    listed = [
        {"name": name, "source": str(entry.source), "max_rank": entry.max_rank}
        | ({} if entry.task is None else {"task": str(entry.task.resolve())})
        for name, entry in zip(copies(questions, count), cycle(entries), strict=False)
    ]
    write_json(path, {"adapters": listed})  # JSON is YAML
    return path


def mixed(questions: Sequence[AdapterQuestions], names: Sequence[str], count: int, first: int = 0) -> tuple[Ask, ...]:
    """`count` requests to adapters in turn, which are named by `copies`, from number `first` on.

    If there are twice or four times as many names, the questions are the same.
    """
    found = []
    for i in range(first, first + count):
        one = questions[i % len(names) % len(questions)]
        ask = one.asks[i // len(questions) % len(one.asks)]
        found.append(replace(ask, key=str(i), adapter=names[i % len(names)]))
    return tuple(found)


def num_right(replies: Sequence[Reply], answers: Sequence[Any]) -> int:
    """How many replies are exactly the right JSON."""
    right = 0
    for reply, answer in zip(replies, answers, strict=True):
        with suppress(ValueError):
            right += json.loads(reply.text) == answer
    return right


class AdapterBench:
    """The measurements of one engine; each starts the engine anew, so that it has learned nothing."""

    def __init__(
        self,
        peer: Peer,
        base: Path,
        questions: Sequence[AdapterQuestions],
        plan: AdapterPlan,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self._peer, self._base, self._questions, self._plan = peer, base, questions, plan
        self._folder, self._say = folder, say
        self._largest = max((*plan.counts, plan.users + plan.cold))

    def measure(self, merged: Path | None, figures: dict[str, Any], keep: Callable[[], None]) -> None:
        """Measure the parts of the plan, and fill `figures`; `keep` is called after each part, for a run that is ended.

        Raises:
            EngineFailedError: the engine ended, or an answer was an error.
        """
        parts = self._plan.parts
        if "right" in parts:
            figures["right"] = self.right()
            keep()
        if "rates" in parts:
            figures["rounds"] = []
            for number in range(self._plan.rounds):
                figures["rounds"].append({})
                self.rates(number, merged, figures["rounds"][-1], keep)
        if "cold" in parts:
            figures["cold"] = self.cold()
            keep()
        if "long" in parts:
            figures["long"] = self.long()
            keep()

    def right(self) -> dict[str, list[int]]:
        """The number of right answers to each adapter's held-out questions, and of all."""
        self._say(f"{self._peer.name}: held-out questions")
        with self._engine() as engine:
            return {
                one.entry.name: [num_right(_run(engine, one.held_out, 8).replies, one.answers), len(one.answers)]
                for one in self._questions
            }

    def rates(self, number: int, merged: Path | None, found: dict[str, Any], keep: Callable[[], None]) -> None:
        """Fill `found` with answers per second, with every number of adapters; all are asked the same questions."""
        plan = self._plan
        names = copies(self._questions, len(self._questions))
        asks = mixed(self._questions, names, plan.asked)
        self._say(f"{self._peer.name}: round {number + 1}, one adapter at a time")
        alone = {name: self._rate([ask for ask in asks if ask.adapter == name]) for name in names}
        found["one at a time"] = {
            "answers_per_s": len(asks) / sum(one["seconds"] for one in alone.values()),
            "adapters": {name: one["answers_per_s"] for name, one in alone.items()},
        }
        keep()
        for count in plan.counts:
            self._say(f"{self._peer.name}: round {number + 1}, {count} adapters")
            found[str(count)] = self._rate(mixed(self._questions, copies(self._questions, count), plan.asked))
            keep()
        if merged is not None:
            self._say(f"{self._peer.name}: round {number + 1}, a merged model")
            plain = [replace(ask, adapter=None) for ask in asks if ask.adapter == names[0]]
            found["merged"] = self._rate(plain, merged)
            keep()

    def cold(self) -> dict[str, Any]:
        """First answers of adapters that were never asked, and the other requests beside them and without them."""
        self._say(f"{self._peer.name}: cold adapters")
        plan = self._plan
        names = copies(self._questions, plan.users - 1 + plan.cold)
        warm, cold = names[: plan.users - 1], names[plan.users - 1 :]
        before = mixed(self._questions, warm, 2 * len(warm))
        asks = mixed(self._questions, warm, plan.warm, len(before))
        every, found = max(1, len(asks) // len(cold)), dict[str, Any]()
        for name in ("without", "with"):
            added = self._added(warm, cold if name == "with" else None)
            batch = [ask for i in range(len(asks)) for ask in (*_place(added, i, every), asks[i])]
            with self._engine() as engine:
                _run(engine, before, plan.users)
                done = _run(engine, batch, plan.users)
            replies = done.replies
            found[f"others_p95_ms_{name}"] = _p95([r.e2e for r in replies if not r.key.startswith("cold-")])
            if name == "with":
                first = [r for r in replies if r.key.startswith("cold-")]
                found["first_answer_p95_ms"] = _p95([r.e2e for r in first])
                found["first_token_p95_ms"] = _p95([r.ttft or r.e2e for r in first])
        return found | {"others_growth": found["others_p95_ms_with"] / found["others_p95_ms_without"] - 1}

    def long(self) -> dict[str, Any]:
        """Many predictions over all adapters, of which few fit in memory; the resident memory after each part."""
        plan = self._plan
        count, part = max(plan.counts), plan.long // plan.long_parts
        room = plan.long_kept * max(_num_bytes(one) for one in self._questions)
        self._say(f"{self._peer.name}: {plan.long:,} predictions over {count} adapters")
        rng, names = random.Random(0), copies(self._questions, count)
        memory, seconds = [], 0.0
        with self._engine(adapter_memory_mb=-(-room // _MB)) as engine:
            for number in range(plan.long_parts):
                chosen = [rng.randrange(count) for _ in range(part)]
                asks = [
                    replace(self._question(which, number * part + i), key=str(i), adapter=names[which])
                    for i, which in enumerate(chosen)
                ]
                seconds += _run(engine, asks, plan.long_users).wall
                memory.append(engine.memory_mb()["rss_mb"])
                answered = part * (number + 1)
                self._say(f"{self._peer.name}: {answered:,} answered, {answered / seconds:.1f}/s, {memory[-1]:.0f} MB")
        return {
            "predictions": part * plan.long_parts,
            "adapters": count,
            "errors": 0,  # one ends the run
            "answers_per_s": part * plan.long_parts / seconds,
            "rss_mb": memory,
            "rss_growth_mb": memory[-1] - memory[len(memory) // 2],
        }

    def _rate(self, asks: Sequence[Ask], merged: Path | None = None) -> dict[str, Any]:
        """Answers per second after every adapter was asked once, and the memory that the adapters take."""
        named = {ask.adapter: ask for ask in asks}
        warm_up = [replace(ask, key=str(i), max_tokens=4, constraint=None) for i, ask in enumerate(named.values())]
        with self._engine() if merged is None else self._engine_of(merged, {}) as engine:
            empty = engine.memory_mb()["pss_mb"]
            _run(engine, warm_up, self._plan.users)
            loaded = engine.memory_mb()["pss_mb"]
            done = _run(engine, asks, self._plan.users)
        return {
            "answers_per_s": len(asks) / done.wall,
            "seconds": done.wall,
            "p95_ms": _p95([reply.e2e for reply in done.replies]),
            "passes_per_answer": sum(reply.passes for reply in done.replies) / len(asks),
            "mb_per_adapter": None if merged else (loaded - empty) / len(named),
        }

    def _added(self, warm: Sequence[str], cold: Sequence[str] | None) -> list[Ask]:
        """A question to each cold adapter; without them, the same to the warm copies of the same adapters."""
        found = []
        for i in range(self._plan.cold):
            which = (len(warm) + i) % len(self._questions)
            adapter = warm[which % len(warm)] if cold is None else cold[i]
            found.append(replace(self._questions[which].asks[-1], key=f"cold-{i}", adapter=adapter))
        return found

    def _question(self, adapter: int, number: int) -> Ask:
        one = self._questions[adapter % len(self._questions)]
        return one.asks[number % len(one.asks)]

    def _engine(self, **settings: object) -> closing[EngineProcess]:
        path = write_copies(self._questions, self._largest, self._folder / "adapters.yaml")
        if self._peer.engine == "vllm":
            settings["max_loras"] = self._plan.users  # all adapters of a batch
        return self._engine_of(self._base, {"adapters": str(path), **settings})

    def _engine_of(self, weights: Path, more: dict[str, object]) -> closing[EngineProcess]:
        python = python_of(self._peer)
        command, log = self._peer.command(python, weights, **more), self._folder / f"{self._peer.name}.log"
        return closing(EngineProcess(command, self._peer.env(python), log))


def _run(engine: EngineProcess, asks: Sequence[Ask], users: int) -> Done:
    """Run a batch; an error of one request is an error of all."""
    done = engine.run(Batch(tuple(asks), min(users, len(asks))), _SECONDS)
    for reply, ask in zip(done.replies, asks, strict=True):
        if reply.error is not None:
            raise EngineFailedError(f"a request to the adapter {ask.adapter} failed: {reply.error}")
    return done


def _place(added: Sequence[Ask], index: int, every: int) -> Sequence[Ask]:
    """The added requests that come before the request of this index."""
    number, rest = divmod(index, every)
    return added[number : number + 1] if rest == 0 else ()


def _p95(seconds: Sequence[float]) -> float:
    """The 95th percentile in milliseconds, one that was measured."""
    return 1000 * float(np.percentile(seconds, 95, method="higher"))


def _num_bytes(one: AdapterQuestions) -> int:
    assert isinstance(one.entry.source, Path), "read_questions refuses others"
    return (one.entry.source / "adapter_model.safetensors").stat().st_size


def _read(entry: AdapterEntry, base: Path, tokenizer: Tokenizer) -> AdapterQuestions:
    if not isinstance(entry.source, Path):
        raise QuestionError(f"adapter {entry.name!r} is no folder; list folders with {QUESTIONS} and {HELD_OUT}")
    task = create_task(entry.task or base, tokenizer)
    found: dict[str, list[Ask]] = {}
    answers: list[Any] = []
    for file in (QUESTIONS, HELD_OUT):
        path = entry.source / file
        if not path.is_file():
            raise QuestionError(f'{path} is missing; write lines of {{"input": …, "output": …}}')
        for line in path.read_text("utf-8").splitlines():
            record = json.loads(line)
            given = record["input"]
            prompt = task.prepare(given if isinstance(given, dict) else {"text": given})
            ask = Ask("", prompt.token_ids, prompt.sampling.max_tokens, constraint=prompt.constraint)
            found.setdefault(file, []).append(ask)
            if file == HELD_OUT:
                answers.append(record["output"])
    held_out = tuple(replace(ask, key=str(i), adapter=entry.name) for i, ask in enumerate(found[HELD_OUT]))
    return AdapterQuestions(entry, tuple(found[QUESTIONS]), held_out, tuple(answers))
