"""Starts vLLM's own HTTP server for the rest of the test run."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from pipeline.paths import ROOT
from serving.config import Settings
from serving.engines.vllm.draft_config import WORKER
from serving.engines.vllm.options import tokenizer_folder
from serving.text import Tokenizer, num_logits
from tests.free_ports import free_port

_START_SECONDS = 600  # on busy cores


def served(settings: Settings, folder: Path) -> str:
    """The address of a server with the checkpoint and the limits of the settings.

    Args:
        settings: of an engine that would be made in this process.
        folder: for the server's log.
    """
    if url := os.environ.get("CONFORMANCE_SERVER"):
        return url
    port, tokenizer = free_port(), Tokenizer.from_dir(settings.weights_dir)
    options = {
        "--model": settings.weights_dir,
        "--tokenizer": tokenizer_folder(tokenizer, vocab_size=num_logits(settings.weights_dir) or tokenizer.vocab_size),
        "--served-model-name": "small",
        "--host": "127.0.0.1",
        "--port": port,
        "--dtype": "bfloat16" if settings.dtype == "auto" else settings.dtype,
        "--max-model-len": settings.max_model_len,
        "--max-num-seqs": settings.max_num_seqs,
        "--max-num-batched-tokens": settings.max_num_batched_tokens,
        "--structured-outputs-config": '{"backend": "guidance"}',
        "--generation-config": "vllm",
        "--worker-cls": WORKER,  # mends vLLM's seeds on a CPU
    }
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    command += [str(part) for option in options.items() for part in option]
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_INT4_W4A8": "0", "VLLM_CPU_OMP_THREADS_BIND": cores}
    env |= {"VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": str(ROOT)}
    log = folder / "vllm-server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **env}, stdout=output, stderr=output, start_new_session=True
        )
    atexit.register(_stop, process)
    url = f"http://127.0.0.1:{port}"
    _wait(process, url, log)
    return url


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"{url}/v1/models", timeout=10).close()
            return
        time.sleep(0.5)
    raise AssertionError(f"vLLM's server did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
