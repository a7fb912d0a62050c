"""A draft model from a log of prompts and answers, whatever server wrote it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, processors

from pipeline.train.errors import TrainingError
from pipeline.train.log_drafter import LogReader, count_passes, train_from_log
from serving.drafting.drafter import DraftRequest
from serving.drafting.speculative import LinearCost, SpeculativeDrafter
from serving.weights.draft_weights import DRAFT_MODEL
from tasks.errors import CaseFileError
from tests.draft_logs import log_lines
from tests.pipeline.train.training_fixtures import byte_tokenizer, write_base


class Prophet(SpeculativeDrafter):
    """Drafts the answer, of which every third draft is wrong."""

    def __init__(self, answer: list[int]) -> None:
        super().__init__(None, cost=LinearCost(0.06))
        self.answer = answer

    def propose(self, request: DraftRequest, max_tokens: int) -> list[int]:
        super().propose(request, max_tokens)
        begin = len(request.output_token_ids)
        return [token if i % 3 < 2 else -1 for i, token in enumerate(self.answer[begin:])]

    def observe(self, request: DraftRequest, *, num_drafts: int, num_accepted: int) -> None:
        """Trust does not matter here."""


@pytest.mark.parametrize(
    ("length", "passes"),
    [(0, 1), (1, 2), (3, 2), (4, 3), (7, 4)],  # one token of the prompt's pass, then two drafts and one more a pass
)
def test_passes_are_those_that_a_model_with_this_answer_would_need(length: int, passes: int) -> None:
    answer = list(range(10, 10 + length))
    assert count_passes(Prophet(answer), [([1, 2, 3], answer)]) == passes


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """Nothing is compiled, which would take longer than the training; threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.compiler.set_stance("force_eager"):
        yield
    torch.set_num_threads(before)


def log(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in log_lines(count)))
    return path


def test_a_log_gives_a_draft_model_that_the_next_log_must_beat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "base"
    write_base(base)
    path = log(tmp_path / "log.jsonl", 200)
    assert train_from_log(path, base, minutes=60, max_steps=150)
    made = (base / DRAFT_MODEL).read_bytes()
    capsys.readouterr()
    is_kept = train_from_log(path, base, minutes=60, max_steps=1)
    said = re.search(r"with the one that is there ([\d.]+), with the new one ([\d.]+)", capsys.readouterr().err)
    assert said is not None and is_kept == (float(said[2]) < float(said[1]))
    assert ((base / DRAFT_MODEL).read_bytes() != made) == is_kept


def test_a_log_that_is_too_short_is_refused(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    with pytest.raises(TrainingError, match="3 answers are too few; give at least 20"):
        train_from_log(log(tmp_path / "log.jsonl", 3), base)


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
ANSWER = {"role": "assistant", "content": "ho\u2028!"}
TEMPLATE = (
    "{{ bos_token }}{% if tools %}<{{ tools[0].function.name }}>{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{{ '' if thinks else '-' }}{% endif %}"
    "{% if messages[0].role == 'tool' %}{{ raise_exception('a tool answers nobody') }}{% endif %}"
)


def with_template(folder: Path, template: str | None = TEMPLATE) -> Path:
    """A toy checkpoint whose texts begin with a BOS, which its chat template writes itself."""
    write_base(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    frame = processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 256)])
    tokenizer.post_processor = frame
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config | ({"chat_template": template} if template else {}))
    )
    return folder


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines)
    )
    return path


def test_lines_are_what_vllm_s_server_reads_and_writes(tmp_path: Path) -> None:
    """Chats and plain prompts in one log; each prompt has one BOS, and a separator of lines in a text is none."""
    base = with_template(tmp_path / "base")
    parts = [CHAT[0], {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]
    tools = [{"type": "function", "function": {"name": "look"}}]
    path = write_lines(
        tmp_path / "log.jsonl",
        {"messages": [*CHAT, ANSWER], "model": "m"},
        "",
        {"prompt": "Text:\nhi\n", "answer": "ho"},
        {"messages": [*parts, ANSWER], "tools": tools, "chat_template_kwargs": {"thinks": True}},
    )
    tokenizer = byte_tokenizer()
    wanted = [
        ("[system]Be brief.[user]hi[assistant]-", "ho\u2028!"),
        ("Text:\nhi\n", "ho"),
        ("<look>[system]Be brief.[user]h\ni[assistant]", "ho\u2028!"),
    ]
    assert LogReader(path, base).read() == [
        ([256, *tokenizer.encode(prompt).ids], tokenizer.encode(answer).ids) for prompt, answer in wanted
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"prompt": "a"', "not JSON"),
        ("[1, 2]", "not list"),
        ({"prompt": "a", "completion": "b"}, "not the keys prompt, completion"),
        ({"prompt": "a", "answer": 1}, "the answer is 1, not a text"),
        ({"prompt": ["a"], "answer": "b"}, r'the prompt is \["a"\], not a text'),
        ({"messages": CHAT}, "not the assistant's answer"),
        ({"messages": [ANSWER]}, "not the assistant's answer"),
        ({"messages": [*CHAT, {**ANSWER, "content": None, "tool_calls": []}]}, "the answer is null, not a text"),
        ({"messages": ["hi", ANSWER]}, 'a message is .* not "hi"'),
        ({"messages": [{"role": "tool", "content": "4"}, ANSWER]}, "a tool answers nobody"),
        ({"messages": 5}, "not iterable"),
    ],
)
def test_a_broken_line_is_named_by_its_number(tmp_path: Path, line: object, problem: str) -> None:
    base = with_template(tmp_path / "base")
    path = write_lines(tmp_path / "log.jsonl", {"prompt": "a", "answer": "b"}, "", line)
    with pytest.raises((TrainingError, CaseFileError), match=rf"log.jsonl:3: .*{problem}"):
        train_from_log(path, base)


def test_a_checkpoint_without_a_chat_template_or_a_tokenizer_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.jsonl", {"messages": [*CHAT, ANSWER]})
    with pytest.raises(TrainingError, match=r"log.jsonl:1: .*base has no chat template"):
        train_from_log(path, with_template(tmp_path / "base", template=None))
    (tmp_path / "empty").mkdir()
    with pytest.raises(TrainingError, match="empty: its tokenizer cannot be read"):
        train_from_log(path, tmp_path / "empty")
