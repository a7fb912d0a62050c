"""Lets scripts/versions tell a running scripts/serve to load what the package has now, and hear how that went."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gateway.settings import GatewaySettings
from pipeline.paths import ROOT

# Files beside the predictions say where a server listens: a socket's own path may not be long.
_NAME: Final = "serve-"
_ASKED: Final = b"reload\n"
_DONE: Final = "done"


@contextmanager
def listening(folder: Path, reload: Callable[[Callable[[str], None]], bool]) -> Iterator[None]:
    """Be found by `running_servers` while the context lasts; where no file can be written, be not found.

    Args:
        folder: a folder that only this process uses, with a short path.
        reload: loads what the package has; it is given what tells people about it, and returns whether it succeeded.
            It is called in a thread, and once at a time.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "reload"))
        listener.listen()
        threading.Thread(target=_answer, args=(listener, reload), daemon=True).start()
        note: Path | None = None
        with contextlib.suppress(OSError, ValueError):  # ValueError: of settings, which the gateway reports
            note = _notes() / f"{_NAME}{os.getpid()}"
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(str(folder / "reload"), "utf-8")
        try:
            yield
        finally:
            if note is not None:
                with contextlib.suppress(OSError):
                    note.unlink(missing_ok=True)


def _answer(listener: socket.socket, reload: Callable[[Callable[[str], None]], bool]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # closed
            return

        def tell(text: str, to: socket.socket = connection) -> None:
            with contextlib.suppress(OSError):  # who asked may have gone
                to.sendall(f"{text}\n".encode())

        with connection:
            # Who only looks whether somebody listens asks for nothing.
            if connection.recv(len(_ASKED)) == _ASKED and reload(tell):
                tell(_DONE)


def running_servers() -> list[Path]:
    """The places where servers of this package listen for `reload_server`."""
    found = []
    for note in sorted(_notes().glob(f"{_NAME}*")):
        place = Path(note.read_text("utf-8"))
        with socket.socket(socket.AF_UNIX) as asked:
            try:
                asked.connect(str(place))
                found.append(place)
            except OSError:  # it was killed
                note.unlink(missing_ok=True)
    return found


def _notes() -> Path:
    """The folder of what the gateway keeps."""
    return ROOT / GatewaySettings().database.parent


def reload_server(place: Path, tell: Callable[[str], None]) -> bool:
    """Let a server load what its package has now; returns whether it serves that.

    Args:
        place: one of `running_servers`.
        tell: is told what the server says meanwhile.
    """
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(str(place))
        asked.sendall(_ASKED)
        with asked.makefile(encoding="utf-8") as lines:
            last = ""
            for line in lines:
                last = line.rstrip("\n")
                if last != _DONE:
                    tell(last)
    return last == _DONE
