"""scripts/write_task shows once what the model will read, and where a checkpoint's files disagree."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
import typer
from typer.testing import CliRunner

from pipeline.package.command import task_command
from tests.pipeline.package.checkpoints import make_checkpoint

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant"
)


def write(checkpoint: Path) -> str:
    app = typer.Typer()
    app.command()(task_command)
    done = CliRunner().invoke(app, [str(checkpoint), "--task", "chat"])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_prompt_its_ids_and_the_end_tokens_are_shown_with_a_warning_where_files_disagree(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "mine")
    (checkpoint / "chat_template.jinja").write_text(TEMPLATE)
    said = write(checkpoint)
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant"
    assert prompt in said
    ids = json.loads(said.split("Its token ids: ")[1].splitlines()[0])
    whole = tokenizers.Tokenizer.from_str((checkpoint / "tokenizer.json").read_text())
    assert whole.decode(ids, skip_special_tokens=False) == prompt
    assert "warning" not in said
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_start|>"}))
    said = write(checkpoint)
    assert "<|im_end|> = 0 (generation_config.json); <|im_start|> = 1 (tokenizer_config.json)" in said
    assert "warning: these files name different end tokens" in said
