"""Brings this project's present code to a package; what is its owner's stays."""

from __future__ import annotations

import re
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from pipeline.package.errors import PackageError
from pipeline.package.new_package import A_PACKAGE, CODE_IMPORT, IMAGE, PACKAGE, write_code
from pipeline.package.package_wheel import WHEELS
from pipeline.package.signature import write_schema
from pipeline.weights.atomic import write_text
from pipeline.weights.console import say

_COPIED: Final = ("serving", "tasks", "gateway", "pipeline", "scripts")  # the code of packages older than the wheel
_REQUIREMENTS: Final = (IMAGE.name, "image.new.txt")  # those of the commands are in the wheel
_OLD: Final = "before-upgrade"
_HAS_WHEEL: Final = re.compile(r"^import package\b", re.MULTILINE)
_OUR_IMPORT: Final = re.compile(r"^(?:from|import) (?:serving|tasks)\b", re.MULTILINE)


def upgrade_package(folder: Path) -> str:
    """Put the wheel of the present code in place of the package's own code. After a stop it can be called again.

    predict.py, cog.yaml, the README, the weights and their lock stay; so does requirements/image.txt where its owner
    changed it. A predict.py that does not find the wheel gets a line for it. Of a package that is older than the wheel,
    folders of copied code and requirements of commands are moved into `before-upgrade`.

    Returns:
        The name of the wheel.

    Raises:
        PackageError: the folder is no package, or its predict.py does not use this project.
        SignatureError: predict.py has an input that Cog would misread.
    """
    if missing := [name for name in A_PACKAGE if not (folder / name).is_file()]:
        raise PackageError(f"{folder} is no package: it has no {missing[0]}")
    source = (folder / "predict.py").read_text("utf-8")
    if not _HAS_WHEEL.search(source) and not _OUR_IMPORT.search(source):
        raise PackageError(f"{folder / 'predict.py'} imports nothing of this project, so the wheel would not be used")
    write_schema(folder)
    with tempfile.TemporaryDirectory(prefix=".upgrade-", dir=folder) as name:
        staging = Path(name)
        wheel = write_code(staging)
        before = [path for path in folder.glob(WHEELS) if path.name != wheel.name]
        if not any(folder.glob(WHEELS)):  # it is older than the wheel; else folders of these names are its owner's
            _put_aside([folder / name for name in _COPIED if (folder / name).is_dir()], folder / _OLD)
            others = [path for path in (folder / "requirements").glob("*") if path.name not in _REQUIREMENTS]
            _put_aside(others, folder / _OLD / "requirements")
        _place_requirements(staging, folder, before)
        for name in (".dockerignore", ".gitignore"):
            _add_lines(staging / name, folder / name)
        wheel.replace(folder / wheel.name)
        (staging / PACKAGE).replace(folder / PACKAGE)
        for path in before:
            path.unlink()
    if not _HAS_WHEEL.search(source):
        source = _OUR_IMPORT.sub(lambda match: f"{CODE_IMPORT}\n\n{match[0]}", source, count=1)
        write_text(folder / "predict.py", source)
    return wheel.name


def _put_aside(paths: list[Path], folder: Path) -> None:
    if not paths:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        if (folder / path.name).exists():
            raise PackageError(f"{folder / path.name} is there, from an earlier upgrade; delete it, or move it away")
        path.rename(folder / path.name)
    say(f"Moved {', '.join(path.name for path in paths)} into {folder}; delete it when all works")


def _place_requirements(staging: Path, folder: Path, wheels: list[Path]) -> None:
    """Replace the image's requirements, unless they are not what the old wheel has: then their owner changed them."""
    present, new = folder / IMAGE, (staging / IMAGE).read_text("utf-8")
    if present.is_file() and (ours := present.read_text("utf-8")) != new:
        originals = set()
        for path in wheels:
            with zipfile.ZipFile(path) as wheel:
                originals.add(wheel.read(IMAGE.as_posix()).decode())
        if ours not in originals:
            beside = present.with_name(_REQUIREMENTS[1])
            write_text(beside, new)
            say(f"{present} differs from what was made with this package, and stays; {beside.name} has the new pins")
            return
    present.parent.mkdir(exist_ok=True)
    write_text(present, new)


def _add_lines(new: Path, present: Path) -> None:
    lines = present.read_text("utf-8").splitlines() if present.is_file() else []
    added = [line for line in new.read_text("utf-8").splitlines() if line not in lines]
    write_text(present, "\n".join([*lines, *added, ""]))
