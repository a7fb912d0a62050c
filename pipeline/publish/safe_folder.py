"""A folder of weights that may be published: it matches its lock, and no file can run code or holds a secret."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from huggingface_hub import get_token

from pipeline.paths import ROOT, WEIGHTS_LOCK
from pipeline.publish.errors import PublishError
from pipeline.weights.recipes import locked_names, recipes
from serving.weights import VerifiedWeights, verify

_PIECE: Final = 16 << 20  # bytes of a file that are searched at once
_OVERLAP: Final = 4096  # longer than any secret, so that none is cut in two
_SECRETS: Final = {
    "a token of the model hub": rb"hf_[A-Za-z0-9]{34}",
    "a token of Replicate": rb"r8_[A-Za-z0-9]{37}",
    "a token of GitHub": rb"gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,}",
    "a key of OpenAI or Anthropic": rb"sk-(?:proj-|ant-)?[A-Za-z0-9_-]{48,}",
    "a key of AWS": rb"AKIA[0-9A-Z]{16}",
    "a private key": rb"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\s*[A-Za-z0-9+/=]{40}",
}
_PICKLES: Final = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")  # torch's .bin is a zip


def safe_folder(folder: Path, lock: Path | None) -> VerifiedWeights:
    """Check everything that would be published.

    Args:
        lock: their lock; None looks for `NAME.lock` beside the folder, then in the weights.lock of the package,
            and then in those of the recipes.

    Raises:
        PublishError: there is no lock, or a file holds a secret or is pickled. The secret is not in the message.
        WeightsError: the folder does not match its lock, or has a kind of file that is never loaded.
    """
    if not folder.is_dir():
        raise PublishError(f"{folder}: no such folder; give the folder of a finished checkpoint")
    verified = verify(folder, find_lock(folder) if lock is None else lock)
    problems = [problem for file in verified.files for problem in _problems(folder, file.path)]
    if problems:
        raise PublishError(f"{folder} is not safe to publish:\n" + "\n".join(f"  {problem}" for problem in problems))
    return verified


def find_lock(folder: Path) -> Path:
    """The lock that names a folder of weights.

    Raises:
        PublishError: there is none.
    """
    folder = folder.resolve()
    own = folder.with_name(f"{folder.name}.lock")
    of_recipes = (recipe.lock(ROOT) for recipe in recipes(ROOT).values())
    for lock in (own, folder.parent.parent / WEIGHTS_LOCK.name, WEIGHTS_LOCK, *of_recipes):
        if lock.is_file() and (lock == own or folder.name in locked_names(lock)):
            return lock
    raise PublishError(
        f"no lock names {folder.name}, and only locked weights are published: lock them with scripts/lock_weights, "
        "or give their lock with --lock"
    )


def secrets_in(data: bytes) -> list[str]:
    """What kinds of secrets a text holds."""
    found = [kind for kind, pattern in _SECRETS.items() if re.search(rb"(?<![A-Za-z0-9_-])(?:" + pattern + rb")", data)]
    own = get_token()
    if own is not None and len(own) >= 8 and own.encode() in data:
        found.append("your own token of the model hub")
    return found


def _problems(folder: Path, name: str) -> Iterator[str]:
    with (folder / name).open("rb") as file:
        start = file.read(8)
        if name.endswith(".safetensors"):  # numbers; only the header is text
            yield from (
                f"{name} holds {kind}; remove it" for kind in secrets_in(file.read(int.from_bytes(start, "little")))
            )
            return
        if start.startswith(_PICKLES):
            yield f"{name} is pickled and could run code when it is read; convert it to safetensors"
            return
        kinds: dict[str, None] = {}
        rest, piece = b"", start + file.read(_PIECE)
        while piece:
            kinds |= dict.fromkeys(secrets_in(rest + piece))
            rest, piece = piece[-_OVERLAP:], file.read(_PIECE)
        yield from (f"{name} holds {kind}; remove it, revoke it, and lock the folder again" for kind in kinds)
