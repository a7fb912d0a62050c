"""Asks an engine in a process of its own, so that one that crashes or hangs takes nothing else with it."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from lab.gpu.engine_answers import Answers, Variant, ask
from lab.gpu.gpu_report import StageReport

_GRACE: Final = 15.0  # seconds after the deadline, when the process is ended


def ask_apart(
    report: StageReport, answers: Answers, folder: Path, device: str, variant: Variant, deadline: float
) -> None:
    """See `ask`; `answers` receives its answers. What a process gave before it ended counts.

    Raises:
        RuntimeError: the process ended early, or had to be ended.
    """
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    receiving, sending = context.Pipe(duplex=False)
    arguments = (sending, StageReport(report.name, report.where), folder, device, variant, deadline)
    process = context.Process(target=_ask, args=arguments)
    process.start()
    sending.close()  # so that the end of the process is the end of the file
    try:
        while True:
            if not receiving.poll(max(0.0, deadline + _GRACE - time.monotonic())):
                raise RuntimeError("the engine hangs: its process was ended")
            found, newest = receiving.recv()
            report.figures, report.not_run, report.wrong = found.figures, found.not_run, found.wrong
            answers.update(newest)
            if found.status != "running":
                return
    except EOFError:
        process.join()
        raise RuntimeError(f"the engine's process ended with code {process.exitcode}; its messages are above") from None
    finally:
        process.kill()
        process.join()


def _ask(
    sending: Connection, report: StageReport, folder: Path, device: str, variant: Variant, deadline: float
) -> None:
    newest: Answers = {}
    try:
        for newest in ask(report, folder, device, variant, deadline):
            sending.send((report, newest))
    except Exception:
        report.wrong.append(traceback.format_exc(limit=-6))
    report.status = "done"
    sending.send((report, newest))
