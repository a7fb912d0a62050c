"""Runs vLLM for a batch of requests, in its own environment: offline with `LLM.generate`, or its OpenAI server.

python -m lab.bench.offline_vllm generate SETTINGS ASKS ANSWERS
python -m lab.bench.offline_vllm serve SETTINGS PORT
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from lab.bench.protocol import ASK, Ask
from serving.checkpoint import Checkpoint
from serving.config import Settings
from serving.engines.vllm.options import engine_args, sampling_params, set_environment
from serving.text import Tokenizer
from serving.types import GenerationRequest, SamplingParams


def generate(settings: Settings, asks: Path, answers: Path) -> None:
    """Answer all requests of a file with one call, in their order."""
    from vllm import LLM
    from vllm.sampling_params import RequestOutputKind

    arguments = vars(engine_args(settings, Checkpoint.of(settings)))
    del arguments["enable_log_requests"]  # of the asynchronous engine only
    llm = LLM(**arguments)
    tokenizer = Tokenizer.from_dir(settings.weights_dir)
    speculates = arguments["speculative_config"] is not None
    prompts, parameters = [], []
    for line in asks.read_text("utf-8").splitlines():
        ask = ASK.validate_json(line)
        request = to_request(ask)
        one = sampling_params(
            request, tokenizer=tokenizer, max_model_len=llm.model_config.max_model_len, speculates=speculates
        )
        one.output_kind = RequestOutputKind.FINAL_ONLY
        prompts.append({"prompt_token_ids": list(ask.prompt)})
        parameters.append(one)
    with answers.open("w", encoding="utf-8") as file:
        for output in llm.generate(prompts, parameters, use_tqdm=False):
            done = output.outputs[0]
            ids = [token for token in done.token_ids if token not in tokenizer.eos_token_ids]
            answer = {"text": tokenizer.decode(ids), "finish": done.finish_reason, "tokens": len(done.token_ids)}
            file.write(json.dumps(answer) + "\n")


def serve(settings: Settings, port: int) -> None:
    """Run vLLM's OpenAI server with the same engine, until it is ended."""
    from vllm.config import StructuredOutputsConfig
    from vllm.entrypoints.launchers.api_server.entry import run_server
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    options: Any = make_arg_parser(FlexibleArgumentParser()).parse_args(["--host", "127.0.0.1", "--port", str(port)])
    for name, value in vars(engine_args(settings, Checkpoint.of(settings))).items():
        setattr(options, name, value)
    grammars = options.structured_outputs_config
    options.structured_outputs_config = StructuredOutputsConfig(**grammars) if isinstance(grammars, dict) else grammars
    options.served_model_name = ["model"]
    asyncio.run(run_server(options))


def to_request(ask: Ask) -> GenerationRequest:
    """The greedy request of a benchmark's question."""
    return GenerationRequest(ask.key, ask.prompt, SamplingParams(max_tokens=ask.max_tokens), ask.constraint)


def main(action: str, settings_json: str, *arguments: str) -> None:
    """Run one of the actions."""
    settings = Settings(**json.loads(settings_json))
    set_environment(settings)
    if action == "generate":
        generate(settings, Path(arguments[0]), Path(arguments[1]))
    else:
        serve(settings, int(arguments[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
