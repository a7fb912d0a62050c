"""Measures how a draft model's start changes what it learns from few examples: right tokens and passes, held out.

The model is replaced by the given answers: a replayed request accepts exactly the drafts that the reference has, under
the task's grammar. So a base's tokenizer and embedding are enough, and no result depends on a machine's load.

    python -m lab.bench.draft_starts weights/smollm2-135m-instruct DATA… --start pretrained=models/…/draft.model \
        --start nothing --examples 50 200 800 1600 --steps 200 --json starts.json

A folder of data has train.jsonl, validation.jsonl and schema.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file

from pipeline.train.choose import choose
from pipeline.train.draft_answers import Drafted, WrittenPrompt
from pipeline.train.draft_cases import Answers, CaseReader, DraftCase
from pipeline.train.draft_examples import (
    Pair,
    WordRenamer,
    certain_trigrams,
    common_marker,
    frequent_tokens,
    make_pairs,
)
from pipeline.train.draft_fit import evaluate, train
from pipeline.train.draft_network import DraftNetwork
from pipeline.weights.atomic import write_json
from serving.drafting.draft_model import WordTokenizer
from serving.drafting.load_drafter import DraftModelLoader, load_drafter, read_input_embedding
from serving.drafting.speculative import LinearCost, SpeculativeDrafter
from serving.engines.paged.request import Request
from serving.grammar.compiler import GrammarCompiler
from serving.text import Tokenizer
from serving.types import FinishReason, GenerationRequest
from serving.weights.draft_weights import DRAFT_MODEL
from tasks.task import Task, create_task

SIZE, LAYERS, BATCH, RATE = 128, 3, 32, 4e-3
_DRAFTS: Final = 128  # of a request in a pass, as the paged engine
_COST: Final = LinearCost(0.03)


@dataclass(frozen=True, slots=True)
class Bench:
    """One set of examples for one base.

    Args:
        folder: with the base's tokenizer and the task's files.
        cases: to learn from.
        held_out: to measure with.
    """

    folder: Path
    tokenizer: Tokenizer
    task: Task
    embedding: torch.Tensor
    cases: list[DraftCase]
    held_out: list[DraftCase]

    def pairs(self, cases: Sequence[DraftCase]) -> list[Pair]:
        """The pairs of cases, with the marker of all prompts."""
        words, size = WordTokenizer(self.tokenizer), len(self.embedding)
        examples = ((case.prompt, case.answer) for case in cases)
        known = lambda text: [token for token in words(text) if token < size]  # noqa: E731
        return make_pairs(examples, [self.marker], known, cut_answers=True)

    @property
    def marker(self) -> list[int]:
        """What stands before the input."""
        return common_marker([case.prompt for case in self.cases])


def read_bench(base: Path, data: Path, folder: Path) -> Bench:
    """Write the task of a folder of examples as `scripts/train` does, and read its cases with given answers."""
    choose(data, folder, schema=data / "schema.json")
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"):
        if (base / name).is_file():
            (folder / name).symlink_to((base / name).resolve())
    tokenizer = Tokenizer.from_dir(folder)
    task = create_task(folder, tokenizer)
    cases, held_out = CaseReader(Drafted(folder), task, Answers.GIVEN).read(folder)
    return Bench(folder, tokenizer, task, read_input_embedding(base), cases, held_out)


def measure(bench: Bench, start: Path | None, examples: int, steps: int) -> dict[str, Any]:
    """Train from a start with the first examples, and measure on those held out."""
    torch.manual_seed(0)
    order = random.Random(0)
    model = DraftNetwork(bench.embedding, size=SIZE, num_layers=LAYERS)
    if start is not None:
        model.restore(start)
    pairs, held_out = bench.pairs(bench.cases[:examples]), bench.pairs(bench.held_out)
    if steps:
        rename = WordRenamer(pairs, bench.tokenizer, len(bench.embedding), order)
        settings: dict[str, Any] = {"minutes": 1e6, "rate": RATE, "batch": BATCH, "max_steps": steps}
        train(model, pairs, order=order, change=rename, report=lambda *_: None, **settings)
    loss, right = evaluate(model, held_out, BATCH)
    with tempfile.TemporaryDirectory() as folder:
        if start is not None and not steps:  # the task's answers are not known
            learnt = {"answer_tokens": load_file(start)["answer_tokens"].tolist(), "trigrams": []}
        else:
            learnt = {"answer_tokens": frequent_tokens(pairs), "trigrams": certain_trigrams(pairs)}
        model.save(Path(folder) / DRAFT_MODEL, markers=[bench.marker], **learnt)
        return {"loss": round(loss, 3), "right": round(right, 4), "passes": passes(bench, Path(folder))}


def passes(bench: Bench, folder: Path) -> float:
    """Mean passes of an answer, one request after the other, with the draft model in a folder or without one."""
    drafter = load_drafter(folder, DraftModelLoader(bench.tokenizer, lambda: bench.embedding), _COST)
    grammars = GrammarCompiler(bench.tokenizer, vocab_size=len(bench.embedding))
    counts = [_passes(drafter, grammars, bench.task, number, case) for number, case in enumerate(bench.held_out)]
    return round(sum(counts) / len(counts), 3)


def _passes(drafter: SpeculativeDrafter, grammars: GrammarCompiler, task: Task, number: int, case: DraftCase) -> int:
    assert not isinstance(case.inputs, WrittenPrompt), "cases of a task have its inputs"
    constraint = task.prepare(case.inputs).constraint
    state = None if constraint is None else grammars.compile(constraint)
    request = Request(GenerationRequest(str(number), tuple(case.prompt)), seed=0, grammar=state)
    answer, count = list(case.answer), 0
    while rest := answer[request.num_output_tokens :]:
        drafter.begin_step(1)
        drafts = drafter.propose(request, _DRAFTS)
        agreeing = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(drafts, rest, strict=False))
        accepted = sum(1 for _ in agreeing)
        drafter.observe(request, num_drafts=len(drafts), num_accepted=accepted)
        more = rest[: accepted + 1]
        request.token_ids += more
        if state is not None and state.accept(more) != len(more):
            raise ValueError(f"the grammar refuses the answer to {case.inputs}")
        count += 1
    request.finish_reason = FinishReason.STOP
    drafter.finish(request)
    return count


def main() -> None:
    """Measure all starts with all numbers of examples; rows are printed as they come and kept in a JSON file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("base", type=Path)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--start", action="append", default=[], help="NAME=draft.model, or NAME= for none")
    parser.add_argument("--examples", type=int, nargs="*", default=[50, 200, 800, 10_000])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    settings = {"base": options.base.name, "steps": options.steps, "batch": BATCH, "rate": RATE}
    rows: list[dict[str, Any]] = []
    for data in options.data:
        with tempfile.TemporaryDirectory() as name:
            bench = read_bench(options.base, data, Path(name) / data.name)
            row = {"data": data.name, "start": "none", "passes": passes(bench, bench.folder)}
            _keep(options.json, settings, rows, row)
            for start in options.start:
                label, _, path = start.partition("=")
                counts = [0, *options.examples] if path else options.examples
                for count in counts:
                    found = measure(bench, Path(path) if path else None, count, options.steps if count else 0)
                    row = {"data": data.name, "start": label, "examples": min(count, len(bench.cases))}
                    _keep(options.json, settings, rows, row | found)


def _keep(path: Path, settings: dict[str, Any], rows: list[dict[str, Any]], row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)
    rows.append(row)
    write_json(path, settings | {"rows": rows})


if __name__ == "__main__":
    main()
