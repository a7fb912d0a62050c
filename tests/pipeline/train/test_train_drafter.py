"""A trained draft model follows the question, and the drafter uses its file."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import JsonValue

from gateway.predictions.prediction import Prediction, Status, now
from gateway.predictions.store import Store
from pipeline.paths import ROOT
from pipeline.train.draft_answers import Drafted, ask, prepared
from pipeline.train.draft_cases import Answers, CaseReader, DraftCase
from pipeline.train.draft_examples import (
    Pair,
    Renamer,
    WordRenamer,
    batch_tensors,
    certain_trigrams,
    common_marker,
    frequent_tokens,
    make_pairs,
)
from pipeline.train.draft_fit import evaluate, train
from pipeline.train.draft_network import DraftNetwork
from pipeline.train.draft_predictions import read_predictions
from pipeline.train.draft_start import committed_start
from pipeline.train.drafter_run import DrafterSettings, Passes, exchanged_pairs, train_drafter
from pipeline.train.errors import NoDraftsError, TrainingError
from pipeline.weights.errors import CheckpointError
from serving.config import Settings
from serving.drafting.draft_model import WordTokenizer
from serving.drafting.load_drafter import DraftModelLoader, as_numpy, read_input_embedding
from serving.drafting.speculative import LinearCost
from serving.engines.paged.options import make_drafter
from serving.engines.paged.request import Request
from serving.kernels.reference import ReferenceKernels
from serving.models.loader import load_with_kernels
from serving.text import Tokenizer
from serving.types import GenerationRequest
from serving.weights.draft_weights import DRAFT_MODEL, MAX_TOKENS, DraftWeights
from tasks.honeycomb.options import PromptTemplate
from tasks.honeycomb.prompt import DRAFT_MARKERS, build_prompt
from tasks.task import ExampleTask, create_task
from tests.pipeline.train.training_fixtures import write_base
from tests.serving.engines.paged.adapter_folders import write_adapter
from tests.small_model import NEEDS_WEIGHTS, WEIGHTS
from tests.tiny_tokenizers import byte_level

TOKENIZER = byte_level()
UNITS = {"hour": 3600, "day": 86400}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a model this small, threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def read_pairs(path: Path, template: PromptTemplate) -> list[Pair]:
    """The pairs of Honeycomb's questions."""
    task = {"task": "honeycomb", "name": "toy", "prompt": template, "surface": "json"}
    (path.parent / "task.json").write_text(json.dumps(task))
    task = create_task(path.parent, TOKENIZER)
    assert isinstance(task, ExampleTask)
    examples = ((prompt, answer) for _, prompt, answer in task.read_examples(path))
    markers = [encode(marker) for marker in DRAFT_MARKERS[template]]
    return make_pairs(examples, markers, WordTokenizer(TOKENIZER), cut_answers=False)


def write_data(folder: Path) -> Path:
    """Questions that differ in one word, and answers in one number."""
    rows = [
        {"nlq": f"errors, last {unit}", "cols": ["a", "b"], "query": {"time_range": seconds}}
        for unit, seconds in UNITS.items()
    ]
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows * 30))
    return path


@pytest.mark.parametrize("template", ["columns-first", "question-first"])
def test_the_prompt_is_read_from_the_marker(tmp_path: Path, template: PromptTemplate) -> None:
    parts, answer = read_pairs(write_data(tmp_path), template)[0]
    prompt, markers = build_prompt("errors, last hour", ("a", "b"), template), DRAFT_MARKERS[template]
    places = [prompt.rindex(marker) + len(marker) for marker in markers]
    expected = [prompt[start:end] for start, end in zip(places, [*places[1:], None], strict=True)]
    assert TOKENIZER.decode(answer) == '{"time_range": 3600}'
    left_out = str.maketrans("", "", " \n'\"")
    assert [TOKENIZER.decode(part) for part in parts] == [text.translate(left_out) for text in expected]


def test_the_target_of_a_token_is_the_next_one_of_the_answer() -> None:
    ids, targets, seen = batch_tensors([([[8, 1], [2]], [3, 4, 5]), ([[6]], [7])])
    assert ids[0, :6].tolist() == [8, 1, 2, 3, 4, 5]
    assert targets[0, :7].tolist() == [-1, -1, 3, 4, 5, -1, -1]
    assert targets[1, :3].tolist() == [7, -1, -1]
    assert seen[0, :6].tolist() == [2, 2, 3, 4, 5, 6]


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_bos=False)


COLUMNS, QUESTION, ANSWER = map(encode, ("['error','the','x']", "error?", '{"column": "error"}'))
PAIR = ([COLUMNS, QUESTION], ANSWER)


OTHER = ([encode("['value']"), encode("value?")], encode('{"column": "value"}'))


def rename(pair: Pair) -> list[Pair]:
    """The renamed versions of one example among others, in 300 draws."""
    renamer = Renamer([pair, OTHER], TOKENIZER, random.Random(0))
    return [renamer(pair) for _ in range(300)]


def test_a_word_of_the_columns_is_renamed_alike_in_question_and_answer() -> None:
    (name,) = encode("error")
    others = set()
    for parts, answer in rename(PAIR):
        other = answer[ANSWER.index(name)]
        assert answer == [other if token == name else token for token in ANSWER]
        assert parts[-1][QUESTION.index(name)] == other
        assert len(parts) == 1 or parts[0][COLUMNS.index(name)] == other
        assert len({*parts[-1]}) == len({*QUESTION})  # no two words got the same name
        others.add(other)
    assert name in others and len(others) > 3
    assert all(TOKENIZER.decode([other]).islower() for other in others)


def test_some_prompts_have_no_columns_as_if_they_were_too_long() -> None:
    assert 5 < sum(len(parts) == 1 for parts, _ in rename(PAIR)) < 80


def test_a_word_with_a_meaning_of_its_own_keeps_its_name() -> None:
    by = encode("by")[0]
    pair = ([[*COLUMNS, by], [*QUESTION, by]], ANSWER)  # also in a column that the question does not mean
    assert all(parts[-1][-1] == by for parts, _ in rename(pair))


def test_a_word_that_the_answer_has_with_a_space_before_it_keeps_its_name() -> None:
    plain, spaced = encode("the")[0], encode(" the")[0]
    assert TOKENIZER.without_space(spaced) == plain
    place = COLUMNS.index(plain)
    renamed = [parts[0][place] for parts, _ in rename(PAIR) if len(parts) > 1]
    kept = [parts[0][place] for parts, _ in rename((PAIR[0], [*ANSWER, spaced])) if len(parts) > 1]
    assert len({*renamed}) > 1 and {*kept} == {plain}


def test_a_prompt_without_a_separate_part_of_columns_is_not_changed() -> None:
    whole = ([COLUMNS + QUESTION], ANSWER)
    assert all(pair == whole for pair in rename(whole))


def test_an_example_that_is_too_long_is_left_out_or_its_answer_cut() -> None:
    words = WordTokenizer(TOKENIZER)
    marker, question = encode("### Text:\n"), encode("text" * 50)
    pairs = {
        cut: make_pairs(
            [([*marker, *question], [5] * 600), (marker + [6] * 600, [5])], [marker], words, cut_answers=cut
        )
        for cut in (True, False)
    }
    assert pairs[False] == []
    (((part,), answer),) = pairs[True]
    assert len(part) + len(answer) == MAX_TOKENS


def test_a_draft_model_reads_what_differs_between_prompts() -> None:
    texts = ("errors by name", "the last hour", "errors")
    prompts = [encode(f"### Text:\n{text}\n\n### JSON:\n") for text in texts]
    marker = common_marker(prompts)
    pairs = make_pairs([(prompt, [5]) for prompt in prompts], [marker], WordTokenizer(TOKENIZER), cut_answers=True)
    assert TOKENIZER.decode(marker) == "### Text:\n"
    assert [TOKENIZER.decode(part) for (part,), _ in pairs] == [t.replace(" ", "") + "###JSON:" for t in texts]


@pytest.mark.parametrize(("prompts", "problem"), [([[1, 2], [3]], "different tokens"), ([[1, 2]] * 2, "are the same")])
def test_prompts_that_do_not_show_where_to_read_are_refused(prompts: list[list[int]], problem: str) -> None:
    with pytest.raises(TrainingError, match=problem):
        common_marker(prompts)


def spaced_words() -> list[tuple[int, int]]:
    """Tokens of the same word without and with a leading space."""
    pairs = ((TOKENIZER.without_space(token), token) for token in range(TOKENIZER.vocab_size))
    return [(a, b) for a, b in pairs if a != b and TOKENIZER.decode([a]).isalpha()]


def test_a_word_of_a_prompt_without_columns_is_renamed_in_all_its_forms() -> None:
    (word, spaced), (own, _), *_ = spaced_words()
    template, rest = encode("JSON")[0], range(TOKENIZER.vocab_size)
    pair: Pair = ([[word, template]], [own, word, spaced])
    pairs = [pair, *(([[template]], [own]) for _ in range(99))]  # `own` is in all answers, `word` in one
    renamer = WordRenamer(pairs, TOKENIZER, len(rest), random.Random(0))
    drawn = [renamer(pair) for _ in range(300)]
    unchanged = drawn.count(pair)
    assert 150 < unchanged < 240  # in half of the examples, 70 % of the words
    for (part,), answer in drawn:
        assert answer[0] == own and part[1] == template
        assert answer[1] == part[0] and TOKENIZER.without_space(answer[2]) == answer[1] != answer[2]
    assert len({answer[1] for _, answer in drawn}) > 3


@NEEDS_WEIGHTS
def test_a_pretrained_draft_model_of_the_same_embedding_is_a_start(tmp_path: Path) -> None:
    """It comes before that of a recipe. An embedding of another dtype is the same, a random one of its shape is not."""
    torch.manual_seed(0)
    small = ROOT / "examples/drafts/smollm2-135m-instruct" / DRAFT_MODEL
    embedding = read_input_embedding(WEIGHTS)

    def start(weights: Path, embedding: torch.Tensor, layers: int = 3) -> Path | None:
        return committed_start(weights, embedding, size=128, layers=layers)

    assert start(tmp_path, embedding) == start(tmp_path, embedding.float() * 1.001) == small
    assert start(tmp_path, torch.randn(embedding.shape)) is None
    assert start(tmp_path, embedding, layers=2) is None
    assert start(WEIGHTS, embedding) is None  # it is the draft model of these weights themselves


def test_trigrams_with_hardly_any_exceptions_count_as_certain() -> None:
    pairs = [([[9]], [1, 2, 3, 4, place]) for place in range(1000, 3000)]
    pairs += [([[9]], [1, 2, 5])]  # hardly any exceptions
    pairs += [([[9]], [3, 4, 1000])] * 20  # as many exceptions as cases
    pairs += [([[9]], [6, 7, 8])] * 5  # too rarely
    pairs += [([[9], [12]], [10, 11, 12])] * 300 + [([[9]], [10, 11, 12])] * 100  # mostly copied
    assert certain_trigrams(pairs) == [(1, 2, 3), (2, 3, 4)]


def test_training_continues_from_fewer_layers_and_new_layers_change_nothing_at_first(tmp_path: Path) -> None:
    embedding, ids = torch.randn(50, 32), torch.tensor([[3, 4, 5]])
    first, more = (DraftNetwork(embedding, size=32, num_layers=n) for n in (1, 3))
    torch.nn.init.normal_(first.layers[0].down.weight)
    first.save(tmp_path / DRAFT_MODEL, markers=[[1]], answer_tokens=[2], trigrams=[])
    more.restore(tmp_path / DRAFT_MODEL)
    logits = [model.logits(ids, ids[0], torch.tensor([[1, 2, 3]])) for model in (first, more)]
    torch.testing.assert_close(*logits, rtol=1e-2, atol=1e-2)


def test_training_continues_only_from_a_file_of_the_same_size(tmp_path: Path) -> None:
    embedding = torch.randn(50, 32)
    first, second = (DraftNetwork(embedding, size=32, num_layers=2) for _ in range(2))
    first.save(tmp_path / DRAFT_MODEL, markers=[[1]], answer_tokens=[2], trigrams=[])
    second.restore(tmp_path / DRAFT_MODEL)
    ids = torch.tensor([[3, 4, 5]])
    logits = [model.logits(ids, ids[0], torch.tensor([[1, 2, 3]])) for model in (first, second)]
    torch.testing.assert_close(*logits, rtol=1e-2, atol=1e-2)
    for other in (DraftNetwork(embedding, size=64, num_layers=2), DraftNetwork(embedding, size=32, num_layers=1)):
        with pytest.raises(TrainingError, match=r"draft\.model"):
            other.restore(tmp_path / DRAFT_MODEL)
    (tmp_path / "other").write_bytes(b"nothing")
    with pytest.raises(TrainingError, match="other"):
        second.restore(tmp_path / "other")


def test_drafts_of_a_trained_model_follow_the_question(tmp_path: Path) -> None:
    torch.manual_seed(0)
    pairs = read_pairs(write_data(tmp_path), "columns-first")
    embedding = torch.randn(TOKENIZER.vocab_size, 32)
    model = DraftNetwork(embedding, size=32, num_layers=2)
    before, _ = evaluate(model, pairs, 20)
    reports: list[int] = []
    steps = train(
        model,
        pairs,
        minutes=10.0,
        max_steps=300,
        rate=1e-2,
        batch=20,
        order=random.Random(0),
        change=lambda pair: pair,
        report=lambda step, *_: reports.append(step),
    )
    loss, right = evaluate(model, pairs, 20)
    assert reports == list(range(1, steps + 1)) and steps == 300
    assert loss < before / 5
    assert right > 0.95

    markers = [TOKENIZER.encode(marker, add_bos=False) for marker in DRAFT_MARKERS["columns-first"]]
    learnt = {"answer_tokens": frequent_tokens(pairs), "trigrams": certain_trigrams(pairs)}
    model.save(tmp_path / DRAFT_MODEL, markers=markers, **learnt)
    drafter = make_drafter(
        Settings(weights_dir=tmp_path), DraftModelLoader(TOKENIZER, lambda: embedding), LinearCost(0.03)
    )
    for unit, seconds in UNITS.items():
        drafter.begin_step(1)
        prompt = TOKENIZER.encode(build_prompt(f"errors, last {unit}", ("a", "b"), "columns-first"))
        drafts = drafter.propose(Request(GenerationRequest(unit, tuple(prompt)), seed=0), 40)
        assert TOKENIZER.decode(drafts).startswith(f'{{"time_range": {seconds}}}')


SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 24}}, "required": ["name"]}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[Path]:
    """A random model of a schema task. Nothing is compiled, which would take longer than the training."""
    folder = write_base(tmp_path / "model")
    task = {"task": "schema", "name": "toy", "schema": SCHEMA, "template": "### Text:\n{text}\n\n### JSON:\n"}
    separators = {"item_separator": ", ", "key_separator": ": "}
    (folder / "task.json").write_text(json.dumps(task | separators))
    with torch.compiler.set_stance("force_eager"):
        yield folder


def write_inputs(path: Path, **more: Any) -> Path:
    """Each of eight inputs eight times: what a random model answers has no rule, but can be learned by heart."""
    lines = [{"input": letter * 4} | more for letter in "abcdefgh"]
    path.write_text("\n".join(map(json.dumps, lines * 8)))
    return path


def settings(**changed: Any) -> DrafterSettings:
    given: dict[str, Any] = {"minutes": 60.0, "rate": 1e-2, "batch": 16, "size": 32, "layers": 2, "max_steps": 120}
    return DrafterSettings(**given | changed)


def test_a_checkpoint_of_any_task_gets_a_draft_model_that_learned_its_own_answers(
    checkpoint: Path, tmp_path: Path
) -> None:
    """Then it is learned again in one step, and what is there, which is better, stays.

    The record is beside a checkpoint, whose files are locked, and in any other folder.
    """
    data = write_inputs(tmp_path / "cases.jsonl")
    drafted = Drafted(checkpoint)
    before = {path.name for path in checkpoint.iterdir()}
    assert train_drafter(data, drafted, checkpoint, settings())
    assert {path.name for path in checkpoint.iterdir()} == {*before, DRAFT_MODEL}
    run = json.loads((tmp_path / "model.draft-run.json").read_text())
    assert run["passes"]["new"] < run["passes"]["without"] / 2
    assert (run["passes"]["inputs"], run["passes"]["old"], run["data"]["examples"]) == (7, None, 57)
    first = (checkpoint / DRAFT_MODEL).read_bytes()
    assert not train_drafter(data, drafted, checkpoint, settings(max_steps=1))
    assert (checkpoint / DRAFT_MODEL).read_bytes() == first
    assert train_drafter(data, drafted, tmp_path / "more", settings(init=checkpoint / DRAFT_MODEL, max_steps=1))
    assert json.loads((tmp_path / "more" / "draft-run.json").read_text())["passes"]["old"] < run["passes"]["without"]


def test_a_checkpoint_answers_prompts_with_exchanged_values_itself_where_it_answered_the_cases(
    checkpoint: Path,
) -> None:
    drafted = Drafted(checkpoint)
    task, tokenizer, inputs = drafted.create_task(), drafted.tokenizer, [{"text": f"{n} sings."} for n in ("Ada", "Bo")]
    written = [tokenizer.encode(json.dumps({"name": one["text"].split()[0]}), add_bos=False) for one in inputs]
    cases = [DraftCase(one, prepared(task, one).token_ids, answer) for one, answer in zip(inputs, written, strict=True)]
    replies = ask(drafted, task, inputs, concurrency=2, title="Answering")

    def answers(cases: list[DraftCase]) -> set[tuple[int, ...]]:
        markers, size = [tokenizer.encode("### Text:\n", add_bos=False)], tokenizer.vocab_size
        pairs = exchanged_pairs(cases, drafted, task, markers, size, random.Random(0), minutes=10)
        return {tuple(answer) for _, answer in pairs}

    assert answers(cases) == set(map(tuple, written))
    assert answers([replace(case, is_own=True) for case in cases]) == {reply.answer for reply in replies if reply}


def test_an_adapter_gets_a_draft_model_that_learned_the_adapter_s_own_answers(checkpoint: Path, tmp_path: Path) -> None:
    """In the prompt of its own task file. Nothing changes in the checkpoint, which the adapter is served on."""
    weights = load_with_kernels(checkpoint, ReferenceKernels()).weights.decoder
    adapter = write_adapter(tmp_path / "adapter", weights, rank=8)
    task = json.loads((checkpoint / "task.json").read_text())
    (adapter / "task.json").write_text(json.dumps(task | {"template": "### Other:\n{text}\n\n### JSON:\n"}))
    before = {path.name for folder in (checkpoint, adapter) for path in folder.iterdir()}
    data = write_inputs(tmp_path / "cases.jsonl")
    drafted = Drafted(checkpoint, adapter)
    cases, _ = CaseReader(drafted, drafted.create_task(), Answers.AUTO).read(data)
    other, _ = reader(checkpoint, Answers.AUTO).read(data)
    assert {tuple(case.answer) for case in cases} != {tuple(case.answer) for case in other}
    assert train_drafter(data, drafted, adapter, settings())
    assert {path.name for folder in (checkpoint, adapter) for path in folder.iterdir()} == {*before, DRAFT_MODEL}
    assert (adapter / DRAFT_MODEL).is_file()
    passes = json.loads((tmp_path / "adapter.draft-run.json").read_text())["passes"]
    assert passes["new"] < passes["without"] / 2


def prediction(inputs: dict[str, Any], output: JsonValue, number: int, status: Status = Status.SUCCEEDED) -> Prediction:
    return Prediction(f"{number:026}", "org/model", "0" * 64, inputs, now(), status, output)


async def write_store(path: Path, predictions: Sequence[Prediction]) -> Store:
    """The database of a gateway that runs."""
    store = Store(path)
    await store.open()
    await store.save(*predictions)
    return store


async def test_kept_predictions_of_a_gateway_that_runs_are_read_and_it_notices_nothing(
    checkpoint: Path, tmp_path: Path
) -> None:
    """Only successful ones, the newest last, and of equal inputs the newest."""
    path, drafted = tmp_path / "predictions.sqlite", Drafted(checkpoint)
    rows = [
        prediction({"text": "a", "seed": 1}, ['{"name": ', '"old"}'], 1),
        prediction({"text": "failed"}, ['{"name"'], 2, Status.FAILED),
        prediction({"text": "b", "adapter": ""}, '{"name": "b"}', 3),
        prediction({"text": "c", "adapter": "letters"}, '{"name": "letter"}', 4),
        prediction({"text": " "}, '{"name": "blank"}', 5),  # which the task refuses today
        prediction({"text": "a"}, ['{"name": "new"}'], 6),
        prediction({"text": "runs"}, None, 7, Status.PROCESSING),
    ]
    store = await write_store(path, rows)
    for is_open in (True, False):
        cases, held_out = await asyncio.to_thread(CaseReader(drafted, drafted.create_task(), Answers.AUTO).read, path)
        read = [(case.inputs, drafted.tokenizer.decode(case.answer)) for case in cases + held_out]
        assert read == [({"text": "b"}, '{"name": "b"}'), ({"text": "a"}, '{"name": "new"}')]
        if is_open:
            await store.save(prediction({"text": "later"}, "x", 8, Status.FAILED))
            await store.close()
            there = sorted(file.name for file in tmp_path.iterdir())
    assert sorted(file.name for file in tmp_path.iterdir()) == there
    found = read_predictions(path, "letters")
    assert found == [({"text": "c"}, '{"name": "letter"}')]
    with pytest.raises(
        TrainingError, match=r"no successful prediction with the adapter 'x'.*it has .* with no adapter"
    ):
        read_predictions(path, "x")


def test_a_log_of_prompts_and_answers_is_read_as_a_server_reads_it(checkpoint: Path, tmp_path: Path) -> None:
    path, drafted = tmp_path / "log.jsonl", Drafted(checkpoint)
    lines = [{"prompt": f"### Text:\n{letter}\n", "answer": f"<{letter}>"} for letter in "abc"]
    path.write_text("\n".join(map(json.dumps, lines)))
    cases, held_out = CaseReader(drafted, drafted.create_task(), Answers.AUTO).read(path)
    decode = drafted.tokenizer.decode
    assert [(decode(c.prompt), decode(c.answer)) for c in cases + held_out] == [
        (r["prompt"], r["answer"]) for r in lines
    ]
    path.write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "a"}')
    with pytest.raises(TrainingError, match=r"log.jsonl:2: a line is .*\"answer\": text"):
        CaseReader(drafted, drafted.create_task(), Answers.AUTO).read(path)


def test_training_goes_on_with_what_was_asked_and_replaces_what_is_there_only_if_passes_fall(
    checkpoint: Path, tmp_path: Path
) -> None:
    """The predictions begin alike, and the draft model still reads others; its size stays."""
    drafted, path = Drafted(checkpoint), tmp_path / "predictions.sqlite"
    assert train_drafter(write_inputs(tmp_path / "cases.jsonl"), drafted, checkpoint, settings(size=64, layers=1))
    inputs = [{"text": f"say {letter * 4}", "max_tokens": 90 + turn} for turn in range(8) for letter in "abcdefgh"]
    replies = ask(drafted, drafted.create_task(), inputs, concurrency=8, title="Answering")
    outputs = [drafted.tokenizer.decode(reply.answer) for reply in replies if reply is not None]
    rows = [prediction(*row, number) for number, row in enumerate(zip(inputs, outputs, strict=True))]

    async def write() -> None:
        await (await write_store(path, rows)).close()

    asyncio.run(write())
    before, embedding = (checkpoint / DRAFT_MODEL).read_bytes(), as_numpy(read_input_embedding(checkpoint))
    markers = DraftWeights.load(checkpoint / DRAFT_MODEL, embedding).markers
    ruined = settings(continues=True, max_steps=1, rate=100.0)
    assert not train_drafter(path, drafted, checkpoint, ruined)
    assert (checkpoint / DRAFT_MODEL).read_bytes() == before
    assert train_drafter(path, drafted, checkpoint, settings(continues=True))
    passes = json.loads((tmp_path / "model.draft-run.json").read_text())["passes"]
    assert passes["new"] < passes["old"] / 2
    made = DraftWeights.load(checkpoint / DRAFT_MODEL, embedding)
    assert (made.markers, made.size, len(made.layers)) == (markers, 64, 1)


@pytest.mark.parametrize(
    ("without", "new", "old", "beside", "replacing"),
    [(8, 4, None, True, True), (8, 8, None, False, False), (8, 5, 4, True, False), (8, 3, 4, True, True)],
)
def test_a_draft_model_is_kept_if_it_saves_passes(
    without: float, new: float, old: float | None, beside: bool, replacing: bool
) -> None:
    passes = Passes(60, without, new, old)
    assert (passes.has_fewest(replaces_old=False), passes.has_fewest(replaces_old=True)) == (beside, replacing)


def reader(checkpoint: Path, answers: Answers) -> CaseReader:
    drafted = Drafted(checkpoint)
    return CaseReader(drafted, drafted.create_task(), answers)


def test_given_answers_are_learned_as_the_task_writes_them(checkpoint: Path, tmp_path: Path) -> None:
    """A folder has its own held-out examples; an answer that the schema does not allow is left out."""
    tokenizer = Tokenizer.from_dir(checkpoint)
    write_inputs(tmp_path / "train.jsonl", output='{"name":"x"}')
    lines = [{"input": "a", "output": {"name": "y"}}, {"input": "b", "output": {"other": 1}}]
    (tmp_path / "validation.jsonl").write_text("\n".join(map(json.dumps, lines)))
    cases, held_out = reader(checkpoint, Answers.GIVEN).read(tmp_path)
    assert {tokenizer.decode(case.answer) for case in cases} == {'{"name": "x"}'} and len(cases) == 64
    assert [tokenizer.decode(case.answer) for case in held_out] == ['{"name": "y"}']


def test_a_chat_checkpoint_answers_with_and_without_a_schema_of_the_caller(checkpoint: Path, tmp_path: Path) -> None:
    """Prompts are read behind what all of them begin with, and free text is learned up to the caller's limit."""
    (checkpoint / "task.json").write_text(json.dumps({"task": "chat", "name": "toy", "chat_template": False}))
    tokenizer = Tokenizer.from_dir(checkpoint)
    inputs = [{"prompt": "Say: a", "json_schema": SCHEMA}, {"prompt": "Say: b", "max_tokens": 9}]
    (tmp_path / "cases.jsonl").write_text("\n".join(json.dumps({"input": one}) for one in inputs))
    cases, held_out = reader(checkpoint, Answers.AUTO).read(tmp_path / "cases.jsonl")
    assert list(json.loads(tokenizer.decode(cases[0].answer))) == ["name"]
    assert 0 < len(held_out[0].answer) <= 9
    assert tokenizer.decode(common_marker([case.prompt for case in cases + held_out])) == "Say: "


def test_inputs_that_the_task_refuses_are_left_out(checkpoint: Path, tmp_path: Path) -> None:
    lines = [{"input": text} for text in ("a", " ", "b", "c")]
    (tmp_path / "cases.jsonl").write_text("\n".join(map(json.dumps, lines)))
    cases, held_out = reader(checkpoint, Answers.AUTO).read(tmp_path / "cases.jsonl")
    assert [case.inputs["text"] for case in cases + held_out] == ["a", "b", "c"]
    (tmp_path / "cases.jsonl").write_text(json.dumps({"input": " "}))
    with pytest.raises(TrainingError, match=r"no input can be answered: .*blank"):
        reader(checkpoint, Answers.AUTO).read(tmp_path / "cases.jsonl")


def test_a_honeycomb_checkpoint_learns_the_queries_of_its_data(tmp_path: Path) -> None:
    """The markers are the task's, and the queries are learned as they are in the file."""
    folder = write_base(tmp_path / "model")
    path = write_data(tmp_path)
    (tmp_path / "validation.jsonl").write_text(path.read_text())
    tokenizer = Tokenizer.from_dir(folder)
    cases, held_out = reader(folder, Answers.AUTO).read(tmp_path)
    assert len(cases) == len(held_out) == 60
    assert tokenizer.decode(cases[0].prompt) == build_prompt("errors, last hour", ("a", "b"), "columns-first")
    assert tokenizer.decode(cases[0].answer) == '{"time_range": 3600}'
    assert cases[0].inputs == {"nlq": "errors, last hour", "cols": '["a", "b"]'}


def test_errors_of_the_data_are_errors_of_the_command(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    for content, problem in [('{"text": 1}', "a line is"), ('{"input": "x"}', "too few"), ("", "no usable line")]:
        path.write_text(content)
        with pytest.raises(CheckpointError, match=problem):
            train_drafter(path, Drafted(checkpoint), tmp_path / "out", settings())
    with pytest.raises(CheckpointError, match="multiple of 32"):
        train_drafter(path, Drafted(checkpoint), tmp_path / "out", settings(size=40))


def test_the_model_is_not_asked_what_no_draft_model_reads(
    checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A long text takes seconds to answer, and there may be thousands."""
    path, long = tmp_path / "cases.jsonl", [{"input": f"{number} {'word ' * 500}"} for number in range(8)]
    short = [{"input": letter} for letter in "abcd"]
    path.write_text("\n".join(map(json.dumps, [*long, *short])))
    cases, held_out = reader(checkpoint, Answers.AUTO).read(path)
    assert [case.inputs for case in (*cases, *held_out)] == [{"text": letter} for letter in "abcd"]
    assert "8 inputs are not asked" in capfd.readouterr().err
    path.write_text("\n".join(map(json.dumps, long)))
    with pytest.raises(NoDraftsError, match="the inputs have more"):
        reader(checkpoint, Answers.AUTO).read(path)


def test_without_prompts_that_it_can_read_there_is_no_draft_model_and_no_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A task of long texts goes on without one: this is one step of scripts/train."""
    row = {"nlq": "word " * 300, "cols": ["a"], "query": {}}
    path, folder = tmp_path / "cases.jsonl", write_base(tmp_path / "honeycomb")
    path.write_text((json.dumps(row) + "\n") * 2)
    assert not train_drafter(path, Drafted(folder), folder, settings(), tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text()) == {"kept": False}
    assert "no draft model is made: a draft model reads 512 tokens" in capfd.readouterr().err
    assert not (folder / DRAFT_MODEL).exists()
