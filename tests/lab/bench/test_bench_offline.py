"""The comparison of commands that answer rows: their time and memory, figures, and Ray Data with a server of a test."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from lab.bench.asker import Asker, Inputs
from lab.bench.lineup import EngineFailedError
from lab.bench.offline_command import batch_table, bench_batch, read_rows
from lab.bench.offline_runners import Measured, OfflineAnswer, VllmOffline, find_runner, run_measured
from lab.bench.peers import PEERS, Peer, WeightForms
from pipeline.environment.enter import installed_environment
from pipeline.paths import ROOT
from tests.free_ports import free_port
from tests.lab.bench.bench_fixtures import write_weights

SERVER = """
import http.server, json, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.answer(b"")
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        time.sleep(0.5)
        choice = {"text": str(asked["prompt"][0]), "finish_reason": "stop"}
        self.answer(json.dumps({"choices": [choice], "usage": {"completion_tokens": 1}}).encode())
    def answer(self, body):
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Answering:
    """Answers every row with the same text, in a second a row after a start of three; then it breaks."""

    def __init__(self, text: str | None, runs: int = 2) -> None:
        self.peer: Peer = PEERS["fake"]
        self._text, self._runs = text, runs

    def run(self, questions: Sequence[Inputs], folder: Path) -> tuple[Measured, list[OfflineAnswer]]:
        if not self._runs:
            raise EngineFailedError("broken")
        self._runs -= 1
        return Measured(3.0 + len(questions), 100.0), [OfflineAnswer(self._text, None, 5) for _ in questions]


def test_figures_are_of_whole_commands_and_without_their_start(tmp_path: Path) -> None:
    weights = write_weights(tmp_path / "weights")
    asker, forms = Asker(weights), WeightForms(weights, unquantized=None, cache=tmp_path)
    rows = read_rows(weights, asker, None, 4)
    assert len(rows) == 4 and rows[0]["nlq"]
    runners = {
        "good": Answering('{"calculations": [{"op": "COUNT"}]}'),
        "none": Answering(None),
        "bad": Answering("", 1),
    }
    result = bench_batch(runners, rows, forms, asker, 1, lambda message: None)
    good = result["engines"]["good"]
    assert (good["rows_per_s"], good["rows_per_s_whole"], good["peak_mb"]) == (1.0, 4 / 7, 100.0)
    assert (good["valid"], good["as_first"], result["engines"]["none"]["valid"]) == (4, 4, 0)
    assert result["engines"]["bad"]["error"] == "broken"
    assert batch_table(json.loads(json.dumps(result))).row_count == 3


def test_names_are_those_of_engines_that_can_answer_rows(tmp_path: Path) -> None:
    weights = write_weights(tmp_path / "weights")
    forms, asker = WeightForms(weights, unquantized=None, cache=tmp_path), Asker(weights)
    assert isinstance(find_runner("vllm-both", forms, asker), VllmOffline)
    assert [find_runner(name, forms, asker) for name in ("llama", "ray-paged", "none")] == [None] * 3


def test_a_command_s_memory_counts_its_children(tmp_path: Path) -> None:
    child = "import time; data = bytearray(200 << 20); time.sleep(3)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], start_new_session=True)"
    measured = run_measured([sys.executable, "-c", code], os.environ, tmp_path / "log", 60)
    assert measured.seconds > 3 and 200 < measured.peak_mb < 400
    with pytest.raises(EngineFailedError, match="ended with 1: no luck"):
        run_measured([sys.executable, "-c", "import sys; sys.exit('no luck')"], os.environ, tmp_path / "log", 60)


@pytest.mark.slow
@pytest.mark.index
def test_ray_data_asks_a_server_a_whole_batch_at_a_time(tmp_path: Path) -> None:
    python = installed_environment("ray-data") / "bin" / "python"
    payloads, out, server = tmp_path / "payloads", tmp_path / "out", tmp_path / "server.py"
    payloads.write_text("".join(json.dumps({"prompt": [i]}) + "\n" for i in range(40)))
    server.write_text(SERVER)
    port = str(free_port())
    command = [str(python), "-m", "lab.bench.offline_ray", "20", str(payloads), str(out), port]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    run_measured([*command, sys.executable, str(server), port], env, tmp_path / "log", 280)
    assert [json.loads(line)["text"] for line in out.read_text().splitlines()] == [str(i) for i in range(40)]
