"""Read and write weights.lock, which lists the files of the weights in Cog's format, version 1.

`serving.weights.verify` checks files on disk against it. Image layers in the lock can only be computed by Cog.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from serving.errors import WeightsError

MAX_LOCK_BYTES = 16 * 2**20
_SHA256 = r"^sha256:[0-9a-f]{64}$"


def _check_relative(path: object) -> str:
    """Refuse a path that could leave its folder on any system, or that is not in canonical form."""
    if not isinstance(path, str):
        raise ValueError(f"{path!r} is not a path")
    parts = path.split("/")
    has_special = any(ord(character) < 32 or character == "\\" for character in path)
    if has_special or ":" in parts[0] or {"", ".", ".."} & set(parts):
        raise ValueError(f"{path!r} is not a plain relative path")
    return str(PurePosixPath(path))


def _null_is_empty(value: object) -> object:
    """Go writes null for a list that was never set."""
    return [] if value is None else value


Sha256 = Annotated[str, Field(pattern=_SHA256)]
OptionalSha256 = Annotated[str, Field(pattern=rf"^$|{_SHA256}")]  # Go's empty string: not computed
RelativePath = Annotated[str, BeforeValidator(_check_relative), Field(max_length=4096)]
Strings = Annotated[tuple[str, ...], BeforeValidator(_null_is_empty)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class LockedFile(_Part):
    """One file; `layer` is the digest of the image layer that has it."""

    path: RelativePath
    size: int = Field(ge=0)
    digest: Sha256
    layer: OptionalSha256 = ""


class LockedLayer(_Part):
    """An image layer; only Cog writes them."""

    digest: Sha256
    media_type: str
    size: int = Field(ge=0)
    size_uncompressed: int = Field(ge=0)


class LockedSource(_Part):
    """Where the files came from, and what identifies them there."""

    uri: str = Field(min_length=1)
    fingerprint: str
    include: Strings = ()
    exclude: Strings = ()


class LockedWeights(_Part):
    """One set of files. Digests are empty and layers absent until Cog has computed them.

    Raises:
        ValueError: a path is listed twice, or size or setDigest do not belong to the files.
    """

    name: str = Field(pattern=r"^[a-z0-9]+([._-][a-z0-9]+)*$")
    target: str = Field(pattern=r"^/")
    sources: tuple[LockedSource, ...]
    imported_at: str
    digest: OptionalSha256 = ""
    set_digest: Sha256
    size: int = Field(ge=0)
    size_compressed: int = Field(0, ge=0)
    files: Annotated[tuple[LockedFile, ...], Field(min_length=1)]
    layers: Annotated[tuple[LockedLayer, ...], BeforeValidator(_null_is_empty)] = ()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        paths = [file.path for file in self.files]
        if len(set(paths)) != len(paths):
            raise ValueError("a path is listed twice")
        if self.size != sum(file.size for file in self.files):
            raise ValueError(f"size {self.size} is not the sum of the files' sizes")
        if self.set_digest != set_digest(self.files):
            raise ValueError("setDigest does not belong to the listed files; the lock was edited by hand")
        return self


class WeightsLock(_Part):
    """The contents of weights.lock."""

    version: Literal[1]
    envelope_format: str
    weights: tuple[LockedWeights, ...]

    @classmethod
    def load(cls, path: Path) -> WeightsLock:
        """Read and check a lock.

        Raises:
            WeightsError: the file cannot be read, is too large, or is not a lock.
        """
        try:
            with path.open("rb") as file:
                data = file.read(MAX_LOCK_BYTES + 1)
        except OSError as error:
            raise WeightsError(
                f"{path}: cannot read the lock: {error.strerror}. Write it with scripts/lock_weights."
            ) from error
        if len(data) > MAX_LOCK_BYTES:
            raise WeightsError(f"{path}: over {MAX_LOCK_BYTES:,} bytes; this is not a weights.lock")
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "file"
            raise WeightsError(
                f"{path}: not a lock of format version 1: {where}: {first['msg']}. "
                "Write it again with scripts/lock_weights."
            ) from error

    def text(self) -> str:
        """The file's text as Go would write it; empty fields that only Cog can compute are left out."""
        value = self.model_dump(mode="json", by_alias=True)
        for entry in value["weights"]:
            _drop_empty(entry, ("digest", "sizeCompressed", "layers"))
            for file in entry["files"]:
                _drop_empty(file, ("layer",))
        text = json.dumps(value, indent=2, ensure_ascii=False)
        for character in "<>&\u2028\u2029":
            text = text.replace(character, f"\\u{ord(character):04x}")
        return text

    def entry_for(self, name: str) -> LockedWeights:
        """The set of files with that name, or the only one.

        Raises:
            WeightsError: there are several sets, none with that name.
        """
        if len(self.weights) == 1:
            return self.weights[0]
        for entry in self.weights:
            if entry.name == name:
                return entry
        names = ", ".join(entry.name for entry in self.weights) or "none"
        raise WeightsError(f"the lock has no weights named {name!r}; it has {names}")


def locked_file(path: str, size: int, digest: str) -> LockedFile:
    """A file of a lock to be written: its path in the folder of weights, its bytes, and its SHA-256 in hex.

    The digest may have `sha256:` before it.

    Raises:
        WeightsError: the path is not one that a lock can have.
    """
    try:
        return LockedFile(path=path, size=size, digest=f"sha256:{digest.removeprefix('sha256:')}")
    except ValidationError as error:
        raise WeightsError(f"{path!r} cannot be locked: {error.errors()[0]['msg']}; rename the file") from error


def lock_of(
    name: str, target: str, sources: tuple[LockedSource, ...], imported_at: str, files: tuple[LockedFile, ...]
) -> LockedWeights:
    """A set of files of a lock to be written; size and digest of the set are computed.

    Raises:
        WeightsError: name or target is not one that Cog takes.
    """
    size, digest = sum(file.size for file in files), set_digest(files)
    try:
        return LockedWeights(
            name=name,
            target=target,
            sources=sources,
            imported_at=imported_at,
            set_digest=digest,
            size=size,
            files=files,
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "files"
        raise WeightsError(f"weights {name!r} cannot be locked: {where}: {first['msg']}") from error


def default_weights_dir(lock_path: Path) -> Path:
    """Where the weights of a lock are unless somebody says otherwise: `weights/NAME` beside it.

    Raises:
        WeightsError: the lock cannot be read, or has several sets of weights.
    """
    names = [entry.name for entry in WeightsLock.load(lock_path).weights]
    if len(names) != 1:
        raise WeightsError(
            f"{lock_path} names {len(names)} sets of weights ({', '.join(names) or 'none'}), not one; "
            "set WEIGHTS_DIR to the folder of the one to load"
        )
    return lock_path.parent / "weights" / names[0]


def set_digest(files: Iterable[LockedFile]) -> str:
    """The digest of a set of files: SHA-256 of the sorted lines `<hex>  <path>`."""
    lines = sorted(f"{file.digest.removeprefix('sha256:')}  {file.path}" for file in files)
    return f"sha256:{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()}"


def _drop_empty(value: dict[str, object], keys: tuple[str, ...]) -> None:
    for key in keys:
        if not value[key]:
            del value[key]
