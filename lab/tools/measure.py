"""Asks our server and vLLM's the same questions about tools, one after another, and compares what they answer."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import httpx

from lab.bench.gateway_servers import MODEL, gateway_server, running
from lab.endurance.cog_process import CogServer, free_port
from lab.endurance.own_weights import linked_weights, write_package
from lab.tools.questions import Question
from lab.tools.scoring import Answer, Verdict, judge
from pipeline.environment.enter import installed_environment
from pipeline.evaluate.results import paired_difference, share
from pipeline.paths import ROOT

OURS: Final = "ours"
VLLM: Final = "vllm"
MAX_TOKENS: Final = 256
_CONTEXT: Final = 8192  # tokens of a prompt and its answer, for vLLM
_START_SECONDS: Final = 600.0
_ANSWER_SECONDS: Final = 600.0
_TASK: Final = {"task": "chat", "name": "tools"}


@contextmanager
def our_server(weights: Path, folder: Path) -> Iterator[str]:
    """The gateway in front of a chat package with the paged engine; its address.

    The folder is empty, and on the same file system for the weights to be linked.
    """
    settings = linked_weights(weights, folder / "weights", {"task.json": json.dumps(_TASK)})
    env = {**settings, "ENGINE": "paged", "PYTHONPATH": str(ROOT), "COG_LOG_LEVEL": "warning"}
    package = write_package(folder / "package", "chat")
    server = CogServer(
        "predict.py:Predictor", env=env, log=folder / "cog.log", package=package, setup_seconds=_START_SECONDS
    )
    with server, gateway_server(folder, server.url, max_active=64) as url:
        yield url


@contextmanager
def vllm_server(weights: Path, folder: Path, *, dtype: str, parser: str) -> Iterator[str]:
    """vLLM's own server, with the parser that it has by this name for the model's format of calls; its address."""
    port = free_port()
    python = installed_environment("vllm") / "bin" / "python"
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(weights)]
    command += ["--served-model-name", MODEL, "--port", str(port), "--dtype", dtype, "--max-model-len", str(_CONTEXT)]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", parser, "--host", "127.0.0.1", "--enforce-eager"]
    url = f"http://127.0.0.1:{port}"
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    env = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_NO_USAGE_STATS": "1"}
    env |= {"VLLM_CPU_INT4_W4A8": "0", "HF_HUB_OFFLINE": "1"}  # activations of AWQ weights have 16 bits, not 8
    with running(command, env, folder / "vllm.log", f"{url}/v1/models", MODEL, seconds=_START_SECONDS):
        yield url


def ask(url: str, question: Question) -> Answer:
    """A server's greedy answer."""
    body = {
        "model": MODEL,
        "messages": question.messages,
        "tools": question.tools,
        "tool_choice": "auto",
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    }
    start = time.monotonic()
    try:
        response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=_ANSWER_SECONDS, trust_env=False)
    except httpx.TimeoutException:
        return Answer(seconds=_ANSWER_SECONDS, error=f"none in {_ANSWER_SECONDS} s")
    seconds = time.monotonic() - start
    if response.status_code != 200:
        return Answer(seconds=seconds, error=response.text[:1000])
    answer = response.json()
    [choice] = answer["choices"]
    message = choice["message"]
    return Answer(
        calls=[(one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls") or ()],
        content=message.get("content") or "",
        finish_reason=choice["finish_reason"],
        seconds=seconds,
        prompt_tokens=answer["usage"]["prompt_tokens"],
        completion_tokens=answer["usage"]["completion_tokens"],
    )


class Answers:
    """The answers of a run, kept as lines of `{"server", "question", "answer"}`, so that a stopped run goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[tuple[str, str], Answer] = {}
        for text in path.read_text("utf-8").splitlines() if path.exists() else ():
            line = json.loads(text)
            self._found[line["server"], line["question"]] = Answer(**line["answer"])

    def missing(self, server: str, questions: Sequence[Question]) -> list[Question]:
        """The questions that a server has not answered."""
        return [question for question in questions if (server, question.id) not in self._found]

    def add(self, server: str, question: Question, answer: Answer) -> None:
        """Keep an answer."""
        self._found[server, question.id] = answer
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            line = {"server": server, "question": question.id, "answer": asdict(answer)}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def of(self, server: str, questions: Sequence[Question]) -> list[Answer]:
        """The answers of a server to all of the questions."""
        return [self._found[server, question.id] for question in questions]


def report(questions: Sequence[Question], answers: Mapping[str, Sequence[Answer]]) -> dict[str, Any]:
    """The figures: by category what is right, the faults of each server, and our difference from vLLM.

    The answers are those of `OURS`, and perhaps of `VLLM`, in the order of the questions.
    """
    verdicts = {server: list(map(judge, questions, given)) for server, given in answers.items()}
    found: dict[str, Any] = {
        "questions": len(questions),
        "servers": {server: _faults(verdicts[server], given) for server, given in answers.items()},
        "categories": {},
    }
    for category in dict.fromkeys(question.category for question in questions):
        places = [number for number, question in enumerate(questions) if question.category == category]
        found["categories"][category] = _compared(verdicts, places)
    found["all"] = _compared(verdicts, range(len(questions)))
    if len(verdicts) == 2:
        found["right_of_one_only"] = {
            server: [
                question.id
                for question, one, two in zip(questions, verdicts[server], verdicts[other], strict=True)
                if one.is_right and not two.is_right
            ]
            for server, other in ((OURS, VLLM), (VLLM, OURS))
        }
        tokens = zip(answers[OURS], answers[VLLM], strict=True)
        found["prompts_of_other_length"] = sum(one.prompt_tokens != two.prompt_tokens for one, two in tokens)
    return found


def _compared(verdicts: Mapping[str, Sequence[Verdict]], places: Sequence[int]) -> dict[str, Any]:
    right = {server: [given[place].is_right for place in places] for server, given in verdicts.items()}
    found: dict[str, Any] = {"n": len(places), **{server: share(one) for server, one in right.items()}}
    if len(right) == 2:
        difference, (low, high) = paired_difference(right[VLLM], right[OURS])
        found["ours_minus_vllm"] = {"difference": difference, "low": low, "high": high}
    return found


def _faults(verdicts: Sequence[Verdict], answers: Sequence[Answer]) -> dict[str, Any]:
    return {
        "calls": sum(len(answer.calls) for answer in answers),
        "unparsable calls": sum(verdict.unparsable for verdict in verdicts),
        "calls of functions not given": sum(verdict.unknown_names for verdict in verdicts),
        "calls that do not match the schema": sum(verdict.misfits for verdict in verdicts),
        "answers that reached the limit of tokens": sum(answer.finish_reason == "length" for answer in answers),
        "errors": sum(answer.error is not None for answer in answers),
        "problems": dict(Counter(verdict.problem for verdict in verdicts if verdict.problem).most_common()),
        "seconds of an answer": {
            "mean": round(fmean(answer.seconds for answer in answers), 2),
            "median": round(median(answer.seconds for answer in answers), 2),
        },
        "mean tokens of an answer": round(fmean(answer.completion_tokens for answer in answers), 1),
    }
