"""The servers of a run and what rows use of them: folders and settings."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import psutil

from lab.bench.gateway_servers import gateway_server
from lab.endurance.cog_process import CogServer, ServerFailedError
from lab.endurance.observed_predict import OBSERVED
from lab.endurance.own_weights import chat_files, linked_weights, settings, write_package
from pipeline.paths import ROOT
from pipeline.weights.recipes import find_recipe

SMALL: Final = "honeycomb-nlq-small"
BASE: Final = ROOT / "weights" / "smollm2-135m-instruct"  # of the example adapters, unquantized
ADAPTERS: Final = ROOT / "examples" / "adapters"
SLOTS: Final = 32  # predictions at once, as in cog.yaml
OBSERVED_PREDICTOR: Final = "lab/endurance/observed_predict.py:ObservedPredictor"


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A gateway in front of a server: its address, and the id of its process."""

    url: str
    pid: int


class Stage:
    """Starts real Cog servers with the small model on the paged engine, one at a time, as context managers."""

    def __init__(self, folder: Path) -> None:
        recipe = find_recipe(ROOT, SMALL)
        self.folder = folder
        self.weights = recipe.weights(ROOT)
        self.settings = {"ENGINE": "paged", **settings(self.weights, recipe.lock(ROOT))}
        self.written = (ROOT / "build", ROOT / ".cog")
        """Folders that a server may write to, besides those of its logs."""
        self._shared = ExitStack()
        self._server: CogServer | None = None
        self._count = 0

    @property
    def server(self) -> CogServer:
        """The server that rows share, as an operator starts it; it must be left idle and unharmed."""
        if self._server is None:
            self._server = self._shared.enter_context(self._observed({}, SLOTS))
        return self._server

    def own_server(self, env: Mapping[str, str] = MappingProxyType({}), *, concurrency: int = SLOTS) -> CogServer:
        """A server that the row may harm, with more environment variables; the shared one ends before."""
        self.close()
        return self._observed(env, concurrency)

    def plain_server(self, wrapper: tuple[str, ...] = ()) -> CogServer:
        """The package's own Predictor, which writes no counters; the shared server ends before."""
        self.close()
        log = self.subfolder("server") / "server.log"
        return CogServer("predict.py:Predictor", env=self.settings, log=log, wrapper=wrapper)

    @contextmanager
    def gateway(self, server: CogServer) -> Iterator[RunningGateway]:
        """A gateway in front of a server, which keeps predictions on disk."""
        with gateway_server(self.subfolder("gateway"), server.url, max_active=1000) as url:
            yield RunningGateway(
                url, next(one.pid for one in psutil.Process().children() if "gateway" in one.cmdline())
            )

    def chat_server(self) -> CogServer:
        """The small model as a chat, whose callers send schemas and seeds; the shared server ends before."""
        self.close()
        folder = self.subfolder("chat")
        weights = linked_weights(self.weights, folder / "weights", chat_files())
        return self._package_server(folder, "chat", weights)

    def adapter_server(self) -> CogServer:
        """The small model's base with the example adapters; the shared server ends before.

        Raises:
            ServerFailedError: the base is not built.
        """
        self.close()
        if not BASE.is_dir():
            raise ServerFailedError(f"{BASE.name} is not built: scripts/build_base {BASE.name} {BASE} --unquantized")
        folder = self.subfolder("adapters")
        task = {"task.json": (ADAPTERS / "task.json").read_text("utf-8")}
        weights = linked_weights(BASE, folder / "weights", task)
        return self._package_server(folder, "schema", {**weights, "ADAPTERS": str(ADAPTERS / "adapters.yaml")})

    def _package_server(self, folder: Path, task: str, env: Mapping[str, str]) -> CogServer:
        whole = {**self.settings, "PYTHONPATH": str(ROOT), "COG_LOG_LEVEL": "warning", **env}
        package = write_package(folder / "package", task)
        return CogServer("predict.py:Predictor", env=whole, log=folder / "server.log", package=package)

    def failed_start(self, env: Mapping[str, str]) -> tuple[str, str]:
        """Start a server that must not become ready; its status and the setup's log. The shared one ends before."""
        self.close()
        server = self._observed(env, SLOTS)
        server.process = server.start()
        try:
            seen = server.wait_for("SETUP_FAILED")
        except ServerFailedError as error:
            return "not refused", str(error)
        finally:
            server.__exit__()
        return str(seen["status"]), str(seen["setup"]["logs"])

    def unready_server(self) -> subprocess.Popen[bytes]:
        """A server that has just been started, for the row to end; the shared one ends before."""
        self.close()
        return self._observed({}, SLOTS).start()

    def subfolder(self, name: str) -> Path:
        """A new folder."""
        self._count += 1
        path = self.folder / f"{name}-{self._count}"
        path.mkdir()
        return path

    def stats(self, server: CogServer) -> dict[str, Any]:
        """The counters of a server's engine before the health check that this makes."""
        server.health()
        return dict(json.loads((server.log.parent / "stats.json").read_text("utf-8")))

    def close(self) -> None:
        """End the shared server."""
        self._shared.close()
        self._server = None

    def _observed(self, env: Mapping[str, str], concurrency: int) -> CogServer:
        folder = self.subfolder("server")
        whole = {**self.settings, "COG_LOG_LEVEL": "warning", OBSERVED: str(folder), **env}
        return CogServer(OBSERVED_PREDICTOR, env=whole, log=folder / "server.log", concurrency=concurrency)
