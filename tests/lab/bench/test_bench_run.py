"""The harness with the fake engine in real processes, and the whole command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from lab.bench import peers
from lab.bench.asker import Asker
from lab.bench.command import app
from lab.bench.lineup import EngineFailedError, EngineProcess, Lineup
from lab.bench.peers import PEERS, Peer, WeightForms
from lab.bench.protocol import Ask, Batch, at_rate
from lab.bench.questions import HoneycombQuestions, read_teams
from lab.bench.workloads import Batches, Plan, Workload
from tests.lab.bench.bench_fixtures import write_weights

ROOT = Path(__file__).resolve().parents[3]
BROKEN = Peer("broken", "dev", settings={"engine": "no-such-engine"})


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def process(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    folder = tmp_path_factory.mktemp("process")
    forms = WeightForms(weights, unquantized=None, cache=folder)
    peer, python = PEERS["fake"], Path(sys.executable)
    started = EngineProcess(peer.command(python, forms.path(peer.form)), peer.env(python), folder / "log")
    yield started
    started.close()


def test_a_batch_is_returned_in_order_with_times_and_counts(process: EngineProcess) -> None:
    asks = tuple(Ask(str(i), tuple(range(10, 10 + i)), max_tokens=50) for i in range(1, 9))
    done = process.run(Batch(asks, concurrency=3), timeout=30)
    assert [reply.key for reply in done.replies] == [ask.key for ask in asks]
    assert [reply.output_tokens for reply in done.replies] == list(range(1, 9)), "the fake engine echoes"
    assert all(0 < (reply.ttft or 0) <= reply.e2e <= done.wall for reply in done.replies)
    assert all(reply.passes > 0 and reply.error is None for reply in done.replies)


def test_an_open_loop_sends_requests_without_waiting_for_answers(process: EngineProcess) -> None:
    asks = at_rate([Ask(str(i), (20,), max_tokens=4) for i in range(10)], rate=50)
    last = asks[-1].at
    assert last is not None
    done = process.run(Batch(asks, concurrency=len(asks)), timeout=30)
    assert last <= done.wall < last + 1
    assert max(reply.e2e for reply in done.replies) < 1, "latency counts from the arrival"


def test_free_text_has_as_many_tokens_as_are_asked_for(process: EngineProcess, weights: Path) -> None:
    done = process.run(Batch((Asker(weights).free("a", "Dear", 50),), 1), timeout=30)
    assert done.replies[0].output_tokens == 50


def test_an_error_of_one_request_does_not_affect_others(process: EngineProcess) -> None:
    wrong, right = Ask("a", (10**6,), 5), Ask("b", (40, 41), 5)
    first, second = process.run(Batch((wrong, right), 1), timeout=30).replies
    assert first.error is not None and "InvalidRequestError" in first.error
    assert second.error is None


def test_a_paused_engine_uses_no_processor_time_and_continues_afterwards(process: EngineProcess) -> None:
    def num_stopped() -> int:
        return sum(child.status() == psutil.STATUS_STOPPED for child in psutil.Process().children())

    process.pause()
    deadline = time.monotonic() + 60
    while num_stopped() != 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.resume()
    assert process.run(Batch((Ask("a", (30,), 3),), 1), timeout=30).replies[0].error is None
    assert num_stopped() == 0
    memory = process.memory_mb()
    assert 20 < memory["pss_mb"] <= memory["rss_mb"] < 2000


def test_the_reason_why_an_engine_does_not_start_is_reported(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lab.bench.worker", '{"engine": "no-such-engine"}']
    with pytest.raises(EngineFailedError, match="engine 'no-such-engine' is unknown"):
        EngineProcess(command, os.environ, tmp_path / "log")


def test_an_engine_that_dies_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('out of luck')"]
    with pytest.raises(EngineFailedError, match="ended with 1: out of luck"):
        EngineProcess(command, os.environ, tmp_path / "log")


def test_a_peer_that_fails_is_left_out_and_the_others_continue(weights: Path, tmp_path: Path) -> None:
    said: list[str] = []
    fake = PEERS["fake"]
    forms, asker = WeightForms(weights, unquantized=None, cache=tmp_path), Asker(weights)
    lineup = Lineup([BROKEN, fake], forms, asker, HoneycombQuestions.warm_up, tmp_path, said.append)
    batch = Batch((Ask("a", (30, 31), 3),), 1)
    assert lineup.measure(BROKEN, [batch]) is None
    assert lineup.measure(BROKEN, [batch]) is None
    done = lineup.measure(fake, [batch])
    lineup.close()
    assert done is not None and done.replies[0].output_tokens == 2
    assert len(said) == 1 and "no-such-engine" in (lineup.entries["broken"].error or "")


def test_questions_are_the_same_for_all_and_new_in_every_round(weights: Path) -> None:
    batches = Batches(Asker(weights), HoneycombQuestions(read_teams()), Plan(one=20))

    def prompts(workload: Workload, number: int, *, as_schema: bool = False) -> list[tuple[int, ...]]:
        return [ask.prompt for ask in batches.of(workload, number, None, as_schema=as_schema)[-1].asks]

    first = prompts(Workload.ONE_NEW, 0)
    assert len(first) == 20
    assert first == prompts(Workload.ONE_NEW, 0, as_schema=True)
    others = prompts(Workload.ONE_NEW, 1) + prompts(Workload.ONE_SEEN, 0)
    assert not set(first) & set(others)


def test_cached_columns_were_sent_with_another_question(weights: Path) -> None:
    batches = Batches(Asker(weights), HoneycombQuestions(read_teams()), Plan(one=20))
    before, measured = batches.of(Workload.ONE_SEEN, 0, None)
    for earlier, now in zip(before.asks, measured.asks, strict=True):
        assert earlier.prompt != now.prompt
        assert earlier.constraint == now.constraint, "the same columns in the same order"
        assert earlier.max_tokens == 1


def test_committed_requests_are_twenty_of_14_to_60_columns() -> None:
    teams = read_teams()
    assert len(teams) == 20
    assert all(14 <= len(team.columns) <= 60 and len(team.questions) == 4 for team in teams)
    assert len({question for team in teams for question in team.questions}) >= 79


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_the_command_measures_writes_draws_and_compares(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(peers.PEERS, "broken", BROKEN)
    first = tmp_path / "first.json"
    options = ["--engines", "fake,broken", "--quick", "--weights", weights]
    workloads = "one-new,one-seen,load-8,open,free-200,users"
    code, output = run(*options, "--workloads", workloads, "--json", first, "--plots", tmp_path / "plots")
    assert code == 0, output
    last_line = json.loads(output.splitlines()[-1])
    fake = last_line["engines"]["fake"]
    assert fake["errors"] == 0 and fake["e2e_ms_p50"] > 0 and fake["answers_per_s_8"] > 0
    assert fake["free_e2e_ms_p50"] > 0 and fake["rss_mb"] > 20 and fake["ready_s"] > 0
    assert "no-such-engine" in last_line["engines"]["broken"]["error"]
    assert (tmp_path / "plots" / "bench_latency.png").stat().st_size > 5000
    result = json.loads(first.read_text())
    assert result["machine"]["cores"] >= 1 and len(result["commit"]) == 40
    assert result["answers"]["fake"]["valid"] == result["answers"]["fake"]["answers"] > 0
    code, output = run("--result", first, "--compare", first)
    assert code == 0, output
    assert "slower" not in output and json.loads(output.splitlines()[-1]) == last_line


def test_unknown_names_are_refused_before_anything_starts(weights: Path) -> None:
    assert "unknown engine 'gpu'" in run("--engines", "gpu", "--weights", weights)[1]
    assert "unknown workload 'x'" in run("--workloads", "x", "--weights", weights)[1]
    assert "--evaluation" in run("--workloads", "evaluation", "--weights", weights)[1]


def test_an_interrupted_run_reports_its_results_so_far(weights: Path, tmp_path: Path) -> None:
    """The run would take hours; the result says that it was interrupted."""
    code = "from lab.bench.command import app; app()"
    options = [
        "--engines",
        "fake",
        "--workloads",
        "one-new,open",
        "--rounds",
        "500",
        "--weights",
        str(weights),
    ]
    json_file = tmp_path / "result.json"
    command = [sys.executable, "-c", code, *options, "--json", str(json_file)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as bench:
        assert bench.stderr is not None
        assert any(line.startswith("round 2") for line in bench.stderr), "it ended by itself"
        bench.send_signal(signal.SIGINT)
        output, errors = bench.communicate(timeout=60)
    assert bench.returncode == 0, errors
    assert json.loads(output.splitlines()[-1])["engines"]["fake"]["error"] is None
    assert json.loads(json_file.read_text())["interrupted"] is True
