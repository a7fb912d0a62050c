"""Copies files from and to s3:// and gs://, as a program of its own, in .venv-storage.

python -m pipeline.batch.storage_program get URL FOLDER .jsonl .csv   # an object, or all of a folder with these endings
python -m pipeline.batch.storage_program put FILE URL
python -m pipeline.batch.storage_program exists URL                   # prints yes or no
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

from pyarrow import fs

_LOCAL: Final = fs.LocalFileSystem()
_RETRY_SECONDS: Final = 60  # of Google's client, whose default is 15 minutes
_EMULATOR: Final = "STORAGE_EMULATOR_HOST"  # as Google's own clients call it
_CREDENTIALS: Final = {
    "s3": "credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws or the machine's role, and "
    "AWS_ENDPOINT_URL names another server than Amazon's",
    "gs": "credentials come from the file that GOOGLE_APPLICATION_CREDENTIALS names, `gcloud auth application-default "
    "login` or the machine's service account",
}


class StorageError(Exception):
    """A file cannot be copied; the message says what to do."""


class Place:
    """An object, or a folder of objects.

    Args:
        url: s3://BUCKET/KEY or gs://BUCKET/KEY.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.files, self.path = fs.FileSystem.from_uri(_address(url.rstrip("/")))

    def get(self, folder: Path, endings: list[str]) -> None:
        """Copy the object, or all objects of the folder that have one of these endings, unless they are there."""
        info = self.files.get_file_info(self.path)
        if info.type == fs.FileType.NotFound:
            missing = f"{self.url} does not exist; give an object, or a folder of objects"
            raise StorageError(_no_bucket(self.url) if self._has_no_bucket() else missing)
        listed = self.files.get_file_info(fs.FileSelector(self.path)) if info.type == fs.FileType.Directory else [info]
        found = [one for one in listed if one.is_file and Path(one.base_name).suffix in endings]
        if not found:
            raise StorageError(f"{self.url}: found no file of these formats: {', '.join(endings)}")
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            if file.suffix in endings and file.name not in {one.base_name for one in found}:
                file.unlink()
        for one in found:
            self._copy(one, folder / one.base_name)

    def put(self, file: Path) -> None:
        """Copy a file here; the object is there as a whole, or not at all."""
        fs.copy_files(str(file), self.path, source_filesystem=_LOCAL, destination_filesystem=self.files)

    def exists(self) -> bool:
        """Whether there is an object; its bucket must be there."""
        info = self.files.get_file_info(self.path)
        if info.type == fs.FileType.NotFound and self._has_no_bucket():
            raise StorageError(_no_bucket(self.url))
        return bool(info.is_file)

    def _copy(self, one: Any, target: Path) -> None:
        if target.exists() and (target.stat().st_size, target.stat().st_mtime_ns) == (one.size, one.mtime_ns):
            return
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        fs.copy_files(one.path, str(partial), source_filesystem=self.files, destination_filesystem=_LOCAL)
        os.utime(partial, ns=(one.mtime_ns, one.mtime_ns))
        partial.replace(target)

    def _has_no_bucket(self) -> bool:
        try:
            return bool(self.files.get_file_info(self.path.partition("/")[0]).type == fs.FileType.NotFound)
        except OSError:  # these credentials may not ask
            return False


def _no_bucket(url: str) -> str:
    return f"{url}: there is no such bucket, or it is another account's; make it, or give another one"


def explained(url: str, error: OSError) -> str:
    """What went wrong with a place, and what to do."""
    text = str(error).splitlines()[0]
    if isinstance(error, FileNotFoundError) or "NO_SUCH_BUCKET" in text:
        return _no_bucket(url)
    return f"{url}: {text}; {_CREDENTIALS[url.partition('://')[0]]}"


def _address(url: str) -> str:
    """The address as pyarrow reads it, with what Google's client is to do."""
    scheme, _, path = url.partition("://")
    if scheme != "gs":
        return url
    emulator = os.environ.get(_EMULATOR, "").rstrip("/")
    if not emulator:
        return f"{url}?retry_limit_seconds={_RETRY_SECONDS}"
    how, _, host = emulator.rpartition("://")
    return f"gs://anonymous@{path}?retry_limit_seconds={_RETRY_SECONDS}&endpoint_override={host}&scheme={how or 'http'}"


def main(action: str, *arguments: str) -> None:
    """Run one of the actions; exits with 1 and a message if it fails."""
    url = arguments[1 if action == "put" else 0]
    try:
        place = Place(url)
        match action:
            case "get":
                place.get(Path(arguments[1]), list(arguments[2:]))
            case "put":
                place.put(Path(arguments[0]))
            case "exists":
                print("yes" if place.exists() else "no")
    except StorageError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(explained(url, error))


if __name__ == "__main__":
    main(*sys.argv[1:])
