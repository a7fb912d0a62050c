"""The wheel for people who serve with vLLM alone, installed where this repository is not on the path."""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pipeline.package.package_wheel import write_vllm_wheel
from pipeline.paths import CODE
from serving.weights.draft_weights import DRAFT_MODEL
from tests import tiny_tokenizers
from tests.draft_logs import log_lines
from tests.serving.models import tiny_checkpoints

START = "examples/drafts/smollm2-135m-instruct"
# An import of one of these fails in the environment.
REFUSED = ("cog", "coglet", "fastapi", "starlette", "uvicorn", "gateway", "lab", "tests")
REFUSES = f"""
import sys

class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {REFUSED}:
            raise RuntimeError(f"{{name}} is imported")

sys.meta_path.insert(0, Refusal())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vllm_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def site(wheel: Path) -> Path:
    """Its contents."""
    folder = wheel.with_name("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(*command: str | Path, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, with no path of this repository."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PACKAGE_FOLDER")}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=env | variables)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done


def python(site: Path, program: str, *arguments: str | Path) -> str:
    """What a program prints that imports from an unpacked wheel."""
    return run(sys.executable, "-c", program, *arguments, folder=site.parent, PYTHONPATH=str(site)).stdout


def test_the_same_code_gives_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    assert write_vllm_wheel(tmp_path).read_bytes() == wheel.read_bytes()


def test_the_trainer_imports_no_server(site: Path) -> None:
    program = (
        "import sys, pipeline.train.log_drafter as trainer; assert trainer.__file__.startswith(sys.argv[1]);"
        "print(sorted({'cog', 'aiohttp', 'fastapi', 'gateway', 'vllm'} & set(sys.modules)))"
    )
    assert python(site, program, site) == "[]\n"
    names = {path.relative_to(site).as_posix() for path in site.rglob("*.py")}
    assert "serving/engines/vllm/draft_worker.py" in names and not any(name.startswith("gateway/") for name in names)


def test_it_requires_whatever_it_imports(site: Path) -> None:
    """vLLM brings most of it, but training may be elsewhere."""
    (metadata,) = site.glob("*.dist-info/METADATA")
    lines = message_from_bytes(metadata.read_bytes()).get_all("Requires-Dist")
    required = {re.split(r"[<>=]", line)[0] for line in lines or []}
    imported: set[str] = set()
    for path in site.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    own = {path.name for path in site.iterdir()}
    assert imported - sys.stdlib_module_names - own - {"vllm"} == required


def test_training_starts_from_the_draft_model_that_was_pretrained_for_this_embedding(
    site: Path, tmp_path: Path
) -> None:
    """The embedding has the recorded signs where they are looked at, and is otherwise empty."""
    known = json.loads((CODE / START / "draft-run.json").read_text())["embedding"]
    embedding = torch.zeros(known["shape"], dtype=torch.bfloat16)
    bits = np.unpackbits(np.frombuffer(base64.b64decode(known["signs"]), np.uint8))
    step = embedding.numel() // 4096
    some = embedding.flatten()[::step][:4096]
    some.copy_(torch.from_numpy(1 - 2.0 * bits[: len(some)]))
    save_file({"model.embed_tokens.weight": embedding}, tmp_path / "model.safetensors")
    program = (
        "import sys; from pathlib import Path; from pipeline.train.draft_start import committed_start;"
        "from serving.drafting.load_drafter import read_input_embedding; folder = Path(sys.argv[1]);"
        "print(committed_start(folder, read_input_embedding(folder), size=128, layers=3))"
    )
    assert python(site, program, tmp_path).strip() == str(site / START / "draft.model")


def environment(folder: Path, wheel: Path, *, refuses: bool) -> Path:
    """The programs of a fresh environment with the wheel, whose requirements lie in the environment of the tests."""
    venv.create(folder, with_pip=True)
    purelib = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (purelib / "tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    run(folder / "bin" / "pip", "install", "--no-deps", "--no-index", "--quiet", wheel, folder=folder)
    if refuses:
        (purelib / "refusal.py").write_text(REFUSES)
        (purelib / "refusal.pth").write_text("import refusal\n")
    return folder / "bin"


def checkpoint(folder: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    """A tiny random Qwen2 in 16 bits."""
    folder.mkdir()
    tokenizer = tiny_tokenizers.byte_level()
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = tiny_checkpoints.tiny_qwen2(**sizes, vocab_size=tokenizer.vocab_size, eos_token_id=0)
    tiny_checkpoints.save(model, folder, dtype)
    tiny_tokenizers.save(tokenizer, folder)
    words: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tiny_tokenizers.END}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    return folder


TRAIN = """
import sys
from pathlib import Path
from pipeline.train.log_drafter import train_from_log

sys.exit(not train_from_log(Path(sys.argv[1]), Path(sys.argv[2]), minutes=60, max_steps=150))
"""


def train(programs: Path, weights: Path) -> None:
    """Do what `train-drafter` does, for so many steps instead of so long."""
    run(programs / "train-drafter", "--help", folder=weights.parent)
    log = weights.parent / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in log_lines(200)))
    # To compile the network would take longer than to train it.
    run(programs / "python", "-c", TRAIN, log, weights, folder=weights.parent, TORCH_COMPILE_DISABLE="1")
    assert (weights / DRAFT_MODEL).is_file()


LOAD = """
import sys
from pathlib import Path
from transformers import AutoTokenizer
from serving.drafting.load_drafter import DraftModelLoader, load_drafter, read_input_embedding
from serving.drafting.speculative import LinearCost
from serving.engines.vllm.batch_drafts import BatchDrafts, DraftRow
from serving.text import Tokenizer

folder, prompt, answer = Path(sys.argv[1]), *sys.argv[2:]
known, cost = AutoTokenizer.from_pretrained(folder), LinearCost(0.0)
models = DraftModelLoader(Tokenizer.from_transformers(known), lambda: read_input_embedding(folder))
drafter = load_drafter(folder, models, cost)
drafts = BatchDrafts(
    drafter, begin_grammar=lambda text: None, cost=cost, vocab_size=len(known), load_model=models.load
)
ids, first, *rest = known.encode(prompt), *known.encode(answer)
row = DraftRow("one", ids, [first], num_new=1, end_token_ids={0}, grammar=None, adapter=None, max_drafts=8)
print(sum(a == b for a, b in zip(drafts.propose([row], verified={}, running={"one"})[0], rest)))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_in_an_environment_of_its_own_it_trains_and_drafts_without_a_server(wheel: Path, tmp_path: Path) -> None:
    programs = environment(tmp_path / "venv", wheel, refuses=True)
    weights = checkpoint(tmp_path / "model")
    train(programs, weights)
    (line,) = log_lines(1)
    drafted = run(programs / "python", "-c", LOAD, weights, line["prompt"], line["answer"], folder=tmp_path).stdout
    assert int(drafted) >= 3


SERVE = """
import sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    plugin = "serving.engines.vllm.draft_worker"
    drafts = {"method": "custom_class", "num_speculative_tokens": 8, "model": f"{plugin}.DraftProposer"}
    options = {"worker_cls": f"{plugin}.DraftWorker", "speculative_config": drafts} if sys.argv[2] == "drafts" else {}
    llm = LLM(sys.argv[1], dtype="float32", max_model_len=256, max_num_seqs=4, enforce_eager=True, **options)
    (reply,) = llm.generate([sys.argv[3]], SamplingParams(temperature=0, max_tokens=24))
    print("ids", *reply.outputs[0].token_ids)
"""


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_vllm_takes_the_plug_in_and_the_draft_model_and_answers_the_same(wheel: Path, tmp_path: Path) -> None:
    programs = environment(tmp_path / "venv", wheel, refuses=False)
    weights = checkpoint(tmp_path / "model")
    train(programs, weights)
    (line,) = log_lines(1)
    (tmp_path / "serve.py").write_text(SERVE)
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_STREAM": "ext://sys.stderr"}
    answers = []
    for kind in ("alone", "drafts"):
        done = run(programs / "python", "serve.py", weights, kind, line["prompt"], folder=tmp_path, **env)
        answers.append([text for text in done.stdout.splitlines() if text.startswith("ids")])
    assert answers[0] == answers[1] != []
    assert f"with {weights / 'draft.model'}" in done.stderr + done.stdout
