"""Train a draft model from a log of prompts and answers, for any server of the model: no engine and no task is needed.

    train-drafter LOG.jsonl --model FOLDER

Passes are counted without the model: its answers are in the log, so what it would accept of the drafts is known.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Final

import torch
import typer
from jinja2 import TemplateError
from safetensors import SafetensorError

from pipeline.train.draft_examples import WordRenamer, certain_trigrams, common_marker, frequent_tokens
from pipeline.train.draft_exchange import EXCHANGED, exchanged
from pipeline.train.draft_fit import evaluate, fit, read_pairs, start_network
from pipeline.train.draft_start import committed_start, draft_shape
from pipeline.train.errors import TrainingError
from pipeline.weights.atomic import partial_file
from pipeline.weights.console import report_errors, say
from serving.drafting.load_drafter import DraftModelLoader, read_input_embedding
from serving.drafting.speculative import LinearCost, SpeculativeDrafter
from serving.errors import ServingError
from serving.text import Tokenizer
from serving.types import FinishReason
from serving.weights.draft_weights import DRAFT_MODEL
from tasks.errors import TaskError
from tasks.evaluation.cases import read_records

_SIZE, _LAYERS, _RATE, _BATCH = 128, 3, 4e-3, 64
_MINUTES, _MINUTES_FROM = 20.0, 5.0  # from scratch, and from a draft model
_HELD_OUT: Final = 10  # one of so many, the newest
_COUNTED: Final = 200  # held-out answers of which passes are counted
_ROW_COST: Final = 0.06  # of one more row in a step, as vLLM's plug-in assumes before it has measured
_MAX_DRAFTS: Final = 32
_FEWEST: Final = 20

Example = tuple[list[int], list[int]]  # token ids of a prompt and of its answer


@dataclass(slots=True)
class LoggedRequest:
    """A request whose answer is known: see `serving.drafting.drafter.DraftRequest`."""

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    output_token_ids: list[int] = field(default_factory=list)
    grammar: None = None
    adapter: None = None
    draft_model: None = None
    finish_reason: FinishReason | None = None


def count_passes(drafter: SpeculativeDrafter, examples: Sequence[Example]) -> float:
    """Mean passes of the model an answer, with the end token, one request at a time.

    The model accepts of its drafts what its answer begins with, and each pass gives one token more.
    """
    total = 0
    for number, (prompt, answer) in enumerate(examples):
        request = LoggedRequest(str(number), list(prompt), len(prompt))
        accepted = 0  # the first pass reads the prompt
        while True:
            total += 1
            new = answer[len(request.output_token_ids) :][: accepted + 1]
            request.output_token_ids += new
            request.token_ids += new
            if len(new) <= accepted:  # the end token was the last of this pass
                break
            drafter.begin_step(1)
            drafts = drafter.propose(request, _MAX_DRAFTS)
            rest = answer[len(request.output_token_ids) :]
            accepted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(drafts, rest, strict=False)))
            drafter.observe(request, num_drafts=len(drafts), num_accepted=accepted)
        request.finish_reason = FinishReason.STOP
        drafter.finish(request)
    return total / len(examples)


def train_from_log(log: Path, model: Path, *, minutes: float | None = None, max_steps: int | None = None) -> bool:
    """Train a draft model, and write it into the model's folder if it saves passes; return whether it does.

    Args:
        log: JSONL, the newest lines last: {"prompt", "answer"} texts as the model reads and writes them, or
            {"messages"} of a chat, of which the last one is the answer, perhaps with the request's {"tools"} and
            {"chat_template_kwargs"}.
        model: folder of the checkpoint. If it has a draft model, training goes on from that, and the new one must be
            better.
        minutes: of training; None is 20, or 5 from a draft model.
        max_steps: another limit of the training.

    Raises:
        TrainingError, WeightsError, TaskError: the log or the folder cannot be used; the message says why.
    """
    torch.manual_seed(0)
    reader, embedding, order = LogReader(log, model), read_input_embedding(model), random.Random(0)
    tokenizer, examples = Tokenizer.from_transformers(reader.tokenizer), reader.read()
    if len(examples) < _FEWEST:
        raise TrainingError(f"{log}: {len(examples)} answers are too few; give at least {_FEWEST}, better 300 or more")
    count = -(-len(examples) // _HELD_OUT)
    learned, held_out = examples[:-count], examples[-count:]
    markers = [common_marker([prompt for prompt, _ in examples])]
    pairs, held_out_pairs = (
        read_pairs(some, markers, tokenizer, len(embedding), cut_answers=True) for some in (learned, held_out)
    )
    there = model / DRAFT_MODEL
    start = there if there.is_file() else committed_start(model, embedding, size=_SIZE, layers=_LAYERS)
    say(f"{len(pairs):,} answers to learn from, {len(held_out):,} held out; starting from {start or 'random weights'}")
    size, layers = draft_shape(there) if there.is_file() else (_SIZE, _LAYERS)
    network = start_network(model, embedding, size, layers, start)
    rename = WordRenamer(pairs, tokenizer, len(embedding), order)
    minutes = minutes or (_MINUTES if start is None else _MINUTES_FROM)
    mixed = [(prompt, answer) for prompt, answer, _ in exchanged(learned, markers, tokenizer, order, count=EXCHANGED)]
    more = read_pairs(mixed, markers, tokenizer, len(embedding), cut_answers=True) if mixed else []
    steps, _ = fit(
        network,
        pairs,
        rename,
        order,
        minutes=minutes,
        rate=_RATE,
        batch=_BATCH,
        max_steps=max_steps,
        is_started=start is not None,
        more=more,
    )
    _, hits = evaluate(network, held_out_pairs, _BATCH)
    say(f"{steps:,} steps; {hits:.1%} of the held-out answers' tokens are right")
    models = DraftModelLoader(tokenizer, lambda: embedding)

    def passes(path: Path | None) -> float:
        loaded = None if path is None else models.load(path)
        drafter = SpeculativeDrafter(None, loaded, cost=LinearCost(_ROW_COST), without_space=tokenizer.without_space)
        return count_passes(drafter, held_out[-_COUNTED:])

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / DRAFT_MODEL
        network.save(made, markers=markers, answer_tokens=frequent_tokens(pairs), trigrams=certain_trigrams(pairs))
        best = without = passes(None)
        said = f"passes an answer without a draft model {without:.2f}"
        if there.is_file():
            old = passes(there)
            best, said = min(best, old), f"{said}, with the one that is there {old:.2f}"
        new = passes(made)
        say(f"{said}, with the new one {new:.2f}")
        if new >= best:
            say("not kept, because it saves no passes; a longer log or more --minutes may help")
            return False
        with partial_file(there) as partial:
            shutil.copy(made, partial)
    say(f"wrote {there}")
    return True


class LogReader:
    """Reads a log with the tokenizer and the chat template that vLLM's server uses, which are transformers'.

    Args:
        log: see `train_from_log`.
        model: folder of the checkpoint.

    Raises:
        TrainingError: transformers cannot read the tokenizer.
    """

    def __init__(self, log: Path, model: Path) -> None:
        from transformers import AutoTokenizer  # vLLM needs it as well

        self._log, self._model = log, model
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(model)
        except (OSError, ValueError) as error:
            raise TrainingError(f"{model}: its tokenizer cannot be read, as vLLM would read it: {error}") from error

    def read(self) -> list[Example]:
        """Token ids of prompts and answers.

        Raises:
            TrainingError, CaseFileError: a line has another form, or the checkpoint has no chat template for it.
        """
        examples = []
        for number, record in read_records(self._log, "give the log's path"):
            try:
                examples.append(self._example(record))
            except (ValueError, KeyError, TypeError, TemplateError) as error:
                raise TrainingError(f"{self._log}:{number}: {error}; mend the line, or leave it out") from error
        return examples

    def _example(self, record: Any) -> Example:
        if not isinstance(record, dict) or not ("messages" in record or {"prompt", "answer"} <= record.keys()):
            found = f"the keys {', '.join(record)}" if isinstance(record, dict) else type(record).__name__
            raise ValueError(f'a line is {{"prompt": text, "answer": text}} or {{"messages": [...]}}, not {found}')
        if "messages" in record:
            prompt, answer = self._chat_texts(record)
        else:
            prompt, answer = record["prompt"], record["answer"]
        for name, text in (("prompt", prompt), ("answer", answer)):
            if not isinstance(text, str):
                raise ValueError(f"the {name} is {json.dumps(text)[:80]}, not a text")
        # A chat's template writes the special tokens that a server for completions would add.
        encoded = self.tokenizer.encode(prompt, add_special_tokens="messages" not in record)
        return encoded, self.tokenizer.encode(answer, add_special_tokens=False)

    def _chat_texts(self, record: dict[str, Any]) -> tuple[str, Any]:
        if self.tokenizer.chat_template is None:
            raise ValueError(
                f"{self._model} has no chat template, so its lines need the prompt and the answer as texts that the "
                "model reads and writes"
            )
        messages = [_with_text(message) for message in record["messages"]]
        if len(messages) < 2 or messages[-1]["role"] != "assistant":
            raise ValueError("the last of its messages is not the assistant's answer to those before")
        options = dict(record.get("chat_template_kwargs") or {})
        prompt: str = self.tokenizer.apply_chat_template(
            messages[:-1], tools=record.get("tools"), add_generation_prompt=True, tokenize=False, **options
        )
        return prompt, messages[-1].get("content")


def _with_text(message: Any) -> dict[str, Any]:
    """A message whose content is one text where it came in parts, as vLLM joins them."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError(f'a message is {{"role": ..., "content": ...}}, not {json.dumps(message)[:80]}')
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return {**message, "content": "\n".join(part["text"] for part in content)}
    return message


def main(
    log: Annotated[Path, typer.Argument(help='JSONL of {"prompt", "answer"} or {"messages"}', exists=True)],
    model: Annotated[
        Path, typer.Option(help="folder of the checkpoint that vLLM serves", exists=True, file_okay=False)
    ],
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="of training; by default 20, or 5 from a draft model")
    ] = None,
) -> None:
    """Train a draft model from a log. It is kept only if it saves passes on the newest tenth of the log."""
    with report_errors(TrainingError, ServingError, TaskError, SafetensorError):
        train_from_log(log, model, minutes=minutes)


def run() -> None:
    """The console command `train-drafter`."""
    typer.run(main)


if __name__ == "__main__":
    run()
