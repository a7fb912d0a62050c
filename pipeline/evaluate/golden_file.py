"""Makes the golden prompts of an adapter: what its merged model answers to the first cases of a file."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import aclosing
from pathlib import Path

from pipeline.evaluate.case_tokens import case_tokens
from pipeline.weights.merging.merge import merge_folder
from serving.adapters.golden import MAX_ANSWER_TOKENS, MAX_PROMPT_TOKENS, MAX_PROMPTS, GoldenPrompt
from serving.config import Settings
from serving.engine import Engine, create_engine
from serving.errors import SettingError
from serving.text import Tokenizer
from serving.types import FinishReason, GenerationRequest, SamplingParams
from serving.weights.adapter_files import GOLDEN, adapter_digest
from tasks.task import TASK_FILE


def make_golden(
    adapter: Path, *, base: Path | None, merged: Path | None, cases: Path, task: Path | None, count: int, length: int
) -> str:
    """Write golden.jsonl into the adapter's folder, and return the digest that the adapter has now.

    Args:
        base: unquantized checkpoint to merge it into; None if `merged` is given.
        merged: the merged checkpoint, which may be quantized; None if `base` is given.
        cases: a file of cases as scripts/evaluate takes them; their answers are not used.
        task: a task file; None for the adapter's own, or else the checkpoint's.
        length: limit of an answer's tokens.

    Raises:
        SettingError: a number is over its limit.
        CheckpointError, ServingError, TaskError: a file cannot be used.
    """
    for name, value, limit in (("--count", count, MAX_PROMPTS), ("--length", length, MAX_ANSWER_TOKENS)):
        if not 0 < value <= limit:
            raise SettingError(f"{name} {value} must be from 1 to {limit}")
    own = adapter / TASK_FILE
    task = task or (own if own.is_file() else None)
    if merged is not None:
        lines = _ask(merged, cases, task, count, length)
    else:
        assert base is not None, "the caller gives one of the two"
        with tempfile.TemporaryDirectory() as folder:
            whole = Path(folder) / "merged"
            merge_folder(base, adapter, whole)
            lines = _ask(whole, cases, task, count, length)
    (adapter / GOLDEN).write_text("".join(lines), encoding="utf-8")
    return adapter_digest(adapter)


def _ask(model: Path, cases: Path, task: Path | None, count: int, length: int) -> list[str]:
    prompts = [tuple(tokens[:start]) for tokens, start in case_tokens(cases, model, task, count)]
    if long := [len(prompt) for prompt in prompts if len(prompt) > MAX_PROMPT_TOKENS]:
        raise SettingError(f"{cases}: a prompt has {long[0]:,} tokens, the limit is {MAX_PROMPT_TOKENS:,}; shorten it")
    tokenizer = Tokenizer.from_dir(model)
    engine = create_engine(Settings(weights_dir=model, adapters=None, adapter_sources=None))
    try:
        with asyncio.Runner() as runner:
            found = [runner.run(_answer(engine, number, prompt, length)) for number, prompt in enumerate(prompts)]
    finally:
        engine.close()
    return [golden.to_line(tokenizer.decode(golden.answer)) for golden in found]


async def _answer(engine: Engine, number: int, prompt: tuple[int, ...], length: int) -> GoldenPrompt:
    tokens: list[int] = []
    reason: FinishReason | None = None
    request = GenerationRequest(f"golden-{number}", prompt, SamplingParams(max_tokens=length))
    async with aclosing(engine.generate(request)) as outputs:
        async for output in outputs:
            tokens += output.token_ids
            reason = output.finish_reason
    return GoldenPrompt(prompt, tuple(tokens), reason is FinishReason.STOP)
