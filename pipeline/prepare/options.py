"""What a user wants of scripts/prepare: sources, task, calibration, quantization."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from pipeline.fetching.source import FolderSource, parse_source
from pipeline.package.task_choice import TaskChoice
from pipeline.prepare.errors import PrepareError
from pipeline.weights.bases import BASES
from pipeline.weights.calibration import check_texts
from pipeline.weights.checkpoint_config import read_config_json
from pipeline.weights.digest import sha256

DRAFTER: Final = "draft-model"  # the step that trains one
DRAFTER_CASES: Final = 50  # fewer are not worth the training


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """The options of scripts/prepare that decide what the checkpoint becomes.

    Args:
        base: hf://ORG/MODEL@REVISION, https://…/, a folder, or a name that scripts/build_base knows.
        adapter: a source of the same kinds, apart from names; None serves the base as it is.
        calibration: JSONL of texts for the AWQ search.
        cases: JSONL of the task's cases: for the comparison's scores, for the search where there is no calibration,
            and for the draft model.
        reuse_search: an earlier result of the AWQ search, with which the adapter was trained; None searches.
        merge_options: further arguments of scripts/merge_lora.
        quantize_options: further arguments of scripts/quantize_awq.
        compare_options: further arguments of scripts/compare.
        drafter_options: further arguments of scripts/train_drafter.
        skipped: names of steps that are left out, of those that can be.
    """

    base: str
    adapter: str | None
    out: Path
    choice: TaskChoice
    calibration: Path | None = None
    cases: Path | None = None
    quantize: bool = True
    reuse_search: Path | None = None
    merge_options: tuple[str, ...] = ()
    quantize_options: tuple[str, ...] = ()
    compare_options: tuple[str, ...] = ()
    drafter_options: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    def described(self) -> dict[str, Any]:
        """The options that were given, as JSON."""
        flat = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("choice", "out")}
        flat |= asdict(self.choice)
        return {name: _plain(value) for name, value in flat.items() if value not in (None, ())}

    def fingerprint(self) -> str:
        """A digest of all options, and of the files and folders that they name as these are now."""
        content = {"name": self.out.name, "options": self.described()}
        content["files"] = {str(path): identity(path) for path in self._paths()}
        return digest(content)

    def _paths(self) -> Iterator[Path]:
        named = (self.calibration, self.cases, self.reuse_search, *asdict(self.choice).values())
        yield from (path for path in named if isinstance(path, Path))
        for source in (self.base, self.adapter):
            if source is not None and (folder := local_folder(source)) is not None:
                yield folder


def option_words(**options: object) -> tuple[str, ...]:
    """The options that have a value, by their names in Python, as words of a command line."""
    given = {f"--{name.replace('_', '-')}": value for name, value in options.items() if value is not None}
    return tuple(word for name, value in given.items() for word in (name, str(value)))


def local_folder(source: str) -> Path | None:
    """The folder that a source is; None for other sources.

    Raises:
        CheckpointError: the source has none of the forms, or there is no such folder.
    """
    if source in BASES:
        return None
    parsed = parse_source(source)
    return parsed.path.resolve() if isinstance(parsed, FolderSource) else None


def identity(path: Path) -> Any:
    """What tells whether a file or folder has changed: a file's digest; sizes and times of a folder's files."""
    if path.is_file():
        return sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): [(s := file.stat()).st_size, s.st_mtime_ns] for file in files}


def digest(content: Any) -> str:
    """The SHA-256 of a JSON value in hex."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def base_is_quantized(options: PrepareOptions) -> bool | None:
    """Whether the base is quantized; None where that is not known before it is fetched.

    Raises:
        CheckpointError: there is no such base.
    """
    if options.base in BASES:
        return False
    folder = local_folder(options.base)
    return None if folder is None else is_quantized(folder)


def is_quantized(folder: Path) -> bool:
    """Whether the checkpoint in a folder is quantized.

    Raises:
        CheckpointError: it has no config.json.
    """
    return "quantization_config" in read_config_json(folder)


def check_options(options: PrepareOptions, *, quantized: bool | None) -> None:
    """Find what cannot work; `quantized` is whether the base is, None where it is not known yet.

    Raises:
        PrepareError: options contradict each other, or one is missing.
    """
    if options.adapter is None and options.merge_options:
        raise PrepareError(f"{options.merge_options[0]} is for merging, and there is no --adapter; leave it out")
    if quantized and options.adapter is not None:
        raise PrepareError(
            f"{options.base} is quantized already, and an adapter can only be merged into the unquantized base that it "
            "was trained on; give that as --base (--nf4 merges as QLoRA trained)"
        )
    given = {
        "--calibration": options.calibration is not None,
        "--cases": options.cases is not None and DRAFTER in options.skipped,
        "--group-size, --max-tokens or --tensor-parallel": bool(options.quantize_options),
        "--reuse-search": options.reuse_search is not None,
        "--limit-weights, --limit-logits or --limit-score": bool(options.compare_options),
    }
    if quantized or not options.quantize:
        why = "the base is quantized already" if quantized else "--unquantized leaves that out"
        if unused := [name for name, is_given in given.items() if is_given]:
            raise PrepareError(f"{', '.join(unused)}: for quantizing, and {why}; leave it out")
    elif (quantized is False or options.adapter is not None) and not can_quantize(options):
        raise PrepareError(
            'quantizing needs texts of the task: --calibration with JSONL of {"text": prompt and answer}, or --cases '
            'with JSONL of {"input", "output"}; or --reuse-search, or --unquantized to serve the weights as they are'
        )
    if options.reuse_search is not None and options.quantize_options:
        raise PrepareError(
            f"{options.quantize_options[0]} is for a new search, and --reuse-search makes none; give one"
        )
    if options.drafter_options and (DRAFTER in options.skipped or options.cases is None):
        why = "--no-drafter leaves it out" if DRAFTER in options.skipped else "there are no --cases to learn from"
        raise PrepareError(f"{options.drafter_options[0]} is for the draft model, and {why}; leave it out")
    if options.calibration is not None:
        check_texts(options.calibration)


def count_cases(options: PrepareOptions) -> int:
    """How many cases there are to learn drafts from; 0 where no draft model is wanted.

    Raises:
        OSError: the file cannot be read.
    """
    if options.cases is None or DRAFTER in options.skipped:
        return 0
    with options.cases.open("rb") as lines:
        return sum(1 for line in lines if line.strip())


def has_texts(options: PrepareOptions) -> bool:
    """Whether there is something to search with, and to compare on."""
    return options.calibration is not None or options.cases is not None


def can_quantize(options: PrepareOptions) -> bool:
    """Whether there is something to quantize with: texts for a search, or the result of an earlier one."""
    return has_texts(options) or options.reuse_search is not None


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
