"""Writes the hashes of all pinned packages, and the list of what the image is made of; finds pins without either."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Final

from pipeline.environment.enter import installed_environment
from pipeline.environment.uv import Uv
from pipeline.paths import CODE

REQUIREMENTS: Final = CODE / "requirements"
HASHES: Final = REQUIREMENTS / "hashes"
SBOM: Final = REQUIREMENTS / "image.cdx.json"
_IMAGE: Final = "image"  # has direct pins only, so its hashes are those of all that they need
_HEAD: Final = "# Written by scripts/dev/lock_requirements. For pip and uv: --require-hashes -r, with --no-deps.\n"
_PIN: Final = re.compile(r"^([\w.-]+)==([\w.!+-]+)", re.MULTILINE)
_OTHER: Final = re.compile(r"^(?![\w.-]+==[\w.!+-]+|-r |#).+", re.MULTILINE)  # a range, an address, an option


def write_hashes(uv: Uv) -> None:
    """Write requirements/hashes/NAME.txt for each requirements/NAME.txt, from the package index."""
    HASHES.mkdir(exist_ok=True)
    for file in _files():
        text = uv.hashes(file, with_deps=file.stem == _IMAGE)
        (HASHES / file.name).write_text(_HEAD + text, "utf-8")


def write_sbom() -> None:
    """Write the image's packages in CycloneDX's form, with a tool of an environment of its own."""
    program = installed_environment("sbom") / "bin" / "cyclonedx-py"
    pins = "".join(f"{name}=={version}\n" for name, version in sorted(_pins(HASHES / f"{_IMAGE}.txt")))
    # Without the hashes, which are in the file beside it: with them it has 1.2 MB.
    command = [str(program), "requirements", "-", "--output-reproducible", "--of", "JSON", "-o", str(SBOM)]
    subprocess.run(command, input=pins, text=True, check=True)


def pins_without_hash(requirements: Path = REQUIREMENTS) -> list[str]:
    """Pins of requirements/ that have no hash, hashes of what is not pinned any more, and lines that pin nothing."""
    found = []
    for file in _files(requirements):
        hashed = _hashed(requirements / HASHES.name / file.name)
        pinned = _with_included(file)
        unpinned = set() if file.stem == _IMAGE else hashed - pinned
        found += [f"{file.name}: {name}=={version}" for name, version in sorted((pinned - hashed) | unpinned)]
        found += [f"{file.name}: {line}" for line in _OTHER.findall(file.read_text("utf-8"))]
    return found


def packages_not_listed(requirements: Path = REQUIREMENTS) -> list[str]:
    """Packages of the image that its list lacks, or has in another version."""
    components = json.loads((requirements / SBOM.name).read_text("utf-8"))["components"]
    listed = {(_name(one["name"]), one["version"]) for one in components}
    pinned = _pins(requirements / HASHES.name / f"{_IMAGE}.txt")
    return [f"{name}=={version}" for name, version in sorted(pinned ^ listed)]


def _files(requirements: Path = REQUIREMENTS) -> list[Path]:
    return sorted(requirements.glob("*.txt"))


def _with_included(file: Path) -> set[tuple[str, str]]:
    """The pins of a file and of those that it includes (`-r cpu.txt`)."""
    included = re.findall(r"^-r (\S+)", file.read_text("utf-8"), re.MULTILINE)
    return _pins(file).union(*(_with_included(file.parent / name) for name in included))


def _pins(file: Path) -> set[tuple[str, str]]:
    return {(_name(name), version) for name, version in _PIN.findall(file.read_text("utf-8"))}


def _hashed(file: Path) -> set[tuple[str, str]]:
    """The pins that have a hash; none if there is no file."""
    if not file.exists():
        return set()
    lines = file.read_text("utf-8").replace("\\\n", " ").splitlines()
    return {(_name(m[1]), m[2]) for line in lines if "--hash=sha256:" in line and (m := _PIN.match(line))}


def _name(name: str) -> str:
    """The normal form of a package's name: PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()
