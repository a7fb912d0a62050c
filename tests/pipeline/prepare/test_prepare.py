"""scripts/prepare with the real commands of each step, on a tiny model."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.package.task_choice import TaskChoice
from pipeline.prepare.errors import PrepareError
from pipeline.prepare.options import DRAFTER, PrepareOptions
from pipeline.prepare.record import PrepareRecord, read_record
from pipeline.prepare.run import planned
from pipeline.weights.awq_search_result import AwqSearchResult, save_search_result
from pipeline.weights.safetensors_io import SafetensorsCheckpoint
from serving.weights import verify
from tests.pipeline.package.checkpoints import digests
from tests.pipeline.prepare.sources import command, environment, make_sources, prepare

STEPS = ["fetch-base", "fetch-adapter", "merge", "task", "place", "lock"]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("my sources")
    make_sources(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished checkpoint, and what the command printed beside it."""
    out = tmp_path_factory.mktemp("undisturbed") / "tiny"
    done = prepare(sources, out, "--unquantized")
    assert done.returncode == 0, done.stderr
    out.with_name("stdout").write_text(done.stdout)
    return out


def started(stderr: str) -> list[str]:
    """Names of the steps that a run started, in order."""
    return re.findall(r"^\[\d+/\d+\] ([\w-]+): scripts/", stderr, re.MULTILINE)


def record_of(out: Path) -> PrepareRecord:
    record = read_record(out)
    assert record is not None
    return record


def test_the_result_is_a_checkpoint_with_its_task_and_nothing_else(undisturbed: Path) -> None:
    assert {path.name for path in undisturbed.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "task.json",
        "tokenizer.json",
    } | {path.name for path in undisturbed.glob("tokenizer_config.json")}
    assert {path.name for path in undisturbed.parent.iterdir()} == {"tiny", "tiny.lock", "tiny.prepare.json", "stdout"}
    assert json.loads((undisturbed / "task.json").read_text())["name"] == "tiny"


def test_the_adapter_is_in_the_weights(sources: Path, undisturbed: Path) -> None:
    base, merged = SafetensorsCheckpoint(sources / "base"), SafetensorsCheckpoint(undisturbed)
    changed = {name for name in base.specs() if (base.load(name) != merged.load(name)).any()}
    assert {name.split(".")[-2] for name in changed} == {"q_proj", "v_proj", "down_proj"}


def test_the_record_has_the_cost_and_result_of_each_step(sources: Path, undisturbed: Path) -> None:
    record = record_of(undisturbed)
    assert [step.name for step in record.steps] == STEPS
    for step in record.steps:
        assert step.processor_seconds > 0 and step.wall_seconds > 0, step.name
        assert 10e6 < step.peak_memory_bytes < 4e9, step.name
        assert step.bytes_written > 0 and step.files_written > 0, step.name
    fetch = f"scripts/fetch {shlex.quote(str(sources / 'base'))} "
    assert shlex.join(record.steps[0].command).startswith(fetch), "the folder's name has a space"
    assert record.size == sum(path.stat().st_size for path in undisturbed.iterdir())
    assert {name: file.sha256 for name, file in record.files.items()} == digests(undisturbed)
    assert record.base.source == str(sources / "base")
    assert record.base.files["model.safetensors"] == digests(sources / "base")["model.safetensors"]
    assert record.adapter is not None and "adapter_model.safetensors" in record.adapter.files
    table = undisturbed.with_name("stdout").read_text()
    assert [line.split()[0] for line in table.splitlines()[1:-2]] == STEPS


def test_the_lock_is_beside_the_checkpoint_and_matches_it(undisturbed: Path) -> None:
    verified = verify(undisturbed, undisturbed.with_name("tiny.lock"))
    assert {file.path for file in verified.files} == digests(undisturbed).keys()


@pytest.mark.slow
@pytest.mark.awq
def test_a_comparison_past_its_limit_fails_and_a_higher_limit_continues_from_there(
    sources: Path, tmp_path: Path
) -> None:
    """Four bits change random weights, so a limit of 0 is exceeded."""
    out, texts = tmp_path / "tiny", ("--calibration", sources / "calibration.jsonl")
    refused = prepare(sources, out, *texts, "--limit-weights", "0")
    assert refused.returncode == 3 and not out.exists()
    tried = [step for step in started(refused.stderr) if step.startswith("quantize")]
    assert tried == ["quantize", "quantize-closer", "quantize-mixed"]
    assert "the comparison refuses the checkpoint" in refused.stderr and "\n  scripts/compare " in refused.stderr
    passed = prepare(sources, out, *texts, "--limit-weights", "1", "--limit-logits", "10")
    # What was placed last has layers in 16 bits.
    assert passed.returncode == 0 and started(passed.stderr) == ["place", "compare", "lock"], passed.stderr
    record = record_of(out)
    assert record.comparison is not None and record.comparison["passed"] is True
    assert "modules_to_not_convert" not in json.loads((out / "config.json").read_text())["quantization_config"]


def test_a_few_layers_in_sixteen_bits_are_tried_before_it_refuses(sources: Path, tmp_path: Path) -> None:
    """With the search result of somebody else, which has nothing in it; so no search takes its time here."""
    out, search = tmp_path / "tiny", tmp_path / "search"
    save_search_result(search, AwqSearchResult(32))
    options = ("--calibration", sources / "calibration.jsonl", "--reuse-search", search)
    refused = prepare(sources, out, *options, "--limit-logits", "0")
    assert refused.returncode == 3, refused.stderr
    assert [step for step in started(refused.stderr) if "quantize" in step] == ["quantize", "quantize-mixed"]
    assert "Leaving the layers that four bits change most in 16" in refused.stderr
    work = out.with_name(".tiny.prepare")
    reports = [json.loads((work / f"compare{end}.json").read_text()) for end in ("", "-mixed")]
    first, mixed = (report["logits"]["kl"] for report in reports)
    assert mixed < first

    passed = prepare(sources, out, *options, "--limit-logits", f"{(first + mixed) / 2:.9f}")
    assert passed.returncode == 0, passed.stderr
    left = json.loads((out / "config.json").read_text())["quantization_config"]["modules_to_not_convert"]
    (report,) = (step.report for step in record_of(out).steps if step.name == "quantize-mixed")
    assert report is not None and report["sixteen_bits"] == left and len(left) > 0


@pytest.mark.timeout(1800)
def test_a_draft_model_is_trained_where_there_are_cases_enough_and_nothing_fails_without_it(
    sources: Path, tmp_path: Path
) -> None:
    """Whether it is kept hangs on the time that there was for its training; the record says it."""
    out, cases = tmp_path / "tiny", tmp_path / "cases.jsonl"
    options = ("--unquantized", "--cases", cases, "--force", "--keep", "--drafter-minutes", "0.3")
    cases.write_text('{"input": " "}\n' * 50)
    refused = prepare(sources, out, *options)
    assert refused.returncode == 0 and "The step draft-model failed" in refused.stderr, refused.stderr
    assert started(refused.stderr) == [*STEPS[:-1], "draft-model", "lock"]
    cases.write_text("".join(json.dumps({"input": letter * 4}) + "\n" for letter in "abcdefgh" * 8))
    made = prepare(sources, out, *options)
    assert made.returncode == 0 and started(made.stderr) == ["place", "draft-model", "lock"], made.stderr
    record, lock = record_of(out), verify(out, out.with_name("tiny.lock"))
    report = record.steps[-2].report
    assert report is not None and report["passes"]["inputs"] == 7 and report["examples"] == 57
    files = [{file.path for file in lock.files}, record.files, {path.name for path in out.iterdir()}]
    assert [report["kept"]] * 3 == ["draft.model" in names for names in files]
    assert out.with_name("tiny.draft-run.json").is_file() == report["kept"]


@pytest.mark.parametrize(
    ("count", "options", "problem"),
    [
        (50, {}, None),
        (49, {}, None),
        (50, {"skipped": (DRAFTER,)}, "--cases: for quantizing"),
        (0, {"drafter_options": ("--minutes", "1")}, "there are no --cases to learn from"),
    ],
)
def test_cases_that_are_too_few_train_no_draft_model_and_options_without_effect_are_refused(
    tmp_path: Path, count: int, options: dict[str, tuple[str, ...]], problem: str | None
) -> None:
    (tmp_path / "config.json").write_text("{}")
    cases = tmp_path / "cases.jsonl"
    cases.write_text('{"input": "a"}\n\n' * count)
    given = cases if count else None
    chosen = PrepareOptions(
        str(tmp_path), None, tmp_path / "out", TaskChoice("chat"), cases=given, quantize=False, **options
    )
    if problem is not None:
        with pytest.raises(PrepareError, match=problem):
            planned(chosen)
    else:
        assert (DRAFTER in [step.name for step in planned(chosen)]) == (count == 50)


def test_finished_steps_are_not_repeated(sources: Path, undisturbed: Path) -> None:
    before = digests(undisturbed)
    again = prepare(sources, undisturbed, "--unquantized")
    assert again.returncode == 0 and started(again.stderr) == [], again.stderr
    assert "nothing to do" in again.stderr
    assert digests(undisturbed) == before


def test_a_record_of_the_older_name_is_read_and_replaced(sources: Path, tmp_path: Path) -> None:
    out = tmp_path / "tiny"
    assert prepare(sources, out, "--unquantized").returncode == 0
    record = out.with_name("tiny.prepare.json")
    older = out.with_name("tiny.road.json")
    older.write_text(record.read_text().replace('"comparison"', '"gate"'))
    record.unlink()
    again = prepare(sources, out, "--unquantized")
    assert again.returncode == 0 and "nothing to do" in again.stderr, again.stderr
    (out / "task.json").unlink()
    assert prepare(sources, out, "--unquantized", "--force").returncode == 0
    assert record.exists() and not older.exists()


def test_another_checkpoint_in_the_folder_is_only_replaced_by_force(sources: Path, tmp_path: Path) -> None:
    out = tmp_path / "tiny"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    refused = prepare(sources, out, "--unquantized")
    assert refused.returncode == 1 and "--force" in refused.stderr
    assert (out / "mine.txt").read_text() == "mine"
    assert prepare(sources, out, "--unquantized", "--force").returncode == 0
    assert "mine.txt" not in digests(out) and "model.safetensors" in digests(out)


def test_steps_can_be_printed_and_are_separate_commands(sources: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "tiny"
    printed = prepare(sources, out, "--unquantized", "--dry-run")
    assert printed.returncode == 0 and list(tmp_path.iterdir()) == []
    lines = [line.partition(". ")[2] for line in printed.stdout.splitlines()]
    assert len(lines) == len(STEPS)
    for line in lines:
        subprocess.run(line, shell=True, cwd=Path(__file__).parents[3], check=True, capture_output=True)
    assert digests(tmp_path / ".tiny.prepare" / "tiny") == digests(undisturbed)


def test_an_earlier_search_needs_no_texts_and_then_nothing_is_compared(sources: Path, tmp_path: Path) -> None:
    search, task = sources / "search", TaskChoice("schema", schema=sources / "schema.json")
    options = PrepareOptions(str(sources / "base"), str(sources / "adapter"), tmp_path / "tiny", task)
    with pytest.raises(PrepareError, match="--reuse-search"):
        planned(options)
    search.write_bytes(b"")
    steps = [step.name for step in planned(replace(options, reuse_search=search))]
    assert steps == ["fetch-base", "fetch-adapter", "merge", "task", "quantize", "place", "lock"]


def test_changed_options_repeat_only_what_depends_on_them(sources: Path, tmp_path: Path) -> None:
    out = tmp_path / "tiny"
    assert prepare(sources, out, "--unquantized", "--keep").returncode == 0
    other_task = prepare(sources, out, "--unquantized", "--keep", "--force", "--examples", sources / "cases.jsonl")
    assert started(other_task.stderr) == ["task", "place", "lock"], other_task.stderr
    adapter = sources / "adapter" / "adapter_model.safetensors"
    os.utime(adapter)  # fetched again; the same content changes nothing behind it
    touched = prepare(sources, out, "--unquantized", "--force", "--examples", sources / "cases.jsonl")
    assert started(touched.stderr) == ["fetch-adapter", "place", "lock"], touched.stderr
    assert not (tmp_path / ".tiny.prepare").exists()


def test_a_step_with_lost_or_damaged_output_is_repeated(sources: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "tiny"
    assert prepare(sources, out, "--unquantized", "--keep").returncode == 0
    merged = tmp_path / ".tiny.prepare" / "merged" / "model.safetensors"
    data = bytearray(merged.read_bytes())
    data[-1] ^= 1
    times = merged.stat()
    merged.unlink()  # it is linked to the finished file
    merged.write_bytes(data)
    os.utime(merged, ns=(times.st_atime_ns, times.st_mtime_ns))
    out.rename(tmp_path / "moved")
    again = prepare(sources, out, "--unquantized")
    assert started(again.stderr) == ["merge", "task", "place", "lock"], again.stderr
    assert digests(out) == digests(undisturbed)


def test_a_failing_step_names_the_command_to_repeat_and_keeps_other_steps(sources: Path, tmp_path: Path) -> None:
    out = tmp_path / "tiny"
    bad = tmp_path / "bad.json"
    bad.write_text('{"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=b)c"}}}')
    options = ["--unquantized", "--schema", bad]
    failed = prepare(sources, out, *options)
    assert failed.returncode == 1 and not out.exists()
    assert "the step task failed with exit code 1" in failed.stderr
    assert f"scripts/write_task {tmp_path}/.tiny.prepare/merged" in failed.stderr
    mended = prepare(sources, out, "--unquantized")
    assert mended.returncode == 0 and started(mended.stderr) == ["task", "place", "lock"], mended.stderr


def test_an_interrupt_stops_it_cleanly(sources: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "tiny"
    process = subprocess.Popen(
        command(sources, out, "--unquantized"), env=environment(), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    lines: list[str] = []
    while not started("".join(lines)):
        lines.append(process.stderr.readline())
    process.send_signal(signal.SIGINT)  # only to the main process, which ends its command
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "run the same command to go on" in rest and "Traceback" not in rest, rest
    assert prepare(sources, out, "--unquantized").returncode == 0
    assert digests(out) == digests(undisturbed)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_kills_change_nothing(sources: Path, undisturbed: Path, tmp_path: Path, number: int) -> None:
    """All processes are killed at random moments. A finished step is never started again."""
    seconds = sum(step.wall_seconds for step in record_of(undisturbed).steps)
    chance = random.Random(18)
    kills = rounds = 0
    while kills < number:
        rounds += 1
        out = tmp_path / f"round{rounds}" / "tiny"
        out.parent.mkdir()
        done: list[str] = []
        while True:
            delay = chance.uniform(0.1, seconds / 2) if kills < number else None
            stderr = run_and_kill(command(sources, out, "--unquantized"), delay)
            assert not set(started(stderr)) & set(done), (done, stderr)
            # The last step that was started may have been killed; those before it had finished.
            done += started(stderr)[:-1]
            if out.exists():
                break
            kills += 1
        # Also after a kill between the end of the work and the final cleaning.
        assert prepare(sources, out, "--unquantized").returncode == 0
        assert digests(out) == digests(undisturbed)
        assert {path.name for path in out.parent.iterdir()} == {"tiny", "tiny.lock", "tiny.prepare.json"}


def run_and_kill(words: list[str], delay: float | None) -> str:
    """Run it, and kill its process group after `delay` seconds; returns its stderr."""
    process = subprocess.Popen(
        words,
        env=environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    if delay is not None:
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()[1]
