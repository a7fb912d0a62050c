"""Runs this package on Modal: modal deploy -m deploy.modal.modal_app, from the root of the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import modal

ROOT: Final = Path(__file__).resolve().parents[2]  # in the container it is /src
_PLACE: Final = "/src"
_LEFT_OUT: Final = [".git", ".venv*", "weights", "models", "build", ".door", ".gateway", "**/__pycache__"]

# Modal fills the volume once: modal volume create weights; modal volume put weights weights /
weights = modal.Volume.from_name("weights", create_if_missing=True)
image = (
    modal.Image.debian_slim(python_version="3.11")
    .apt_install("g++")  # builds the drafter's kernels
    .pip_install_from_requirements(str(ROOT / "requirements" / "image.txt"))
    .pip_install("cog==0.23.1")  # as in cog.yaml
    .env({"PYTHONPATH": _PLACE, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"})
    .workdir(_PLACE)
    .add_local_dir(ROOT, _PLACE, ignore=_LEFT_OUT)
)
app = modal.App("my-model", image=image, include_source=False)


@app.cls(gpu="L4", volumes={f"{_PLACE}/weights": weights.read_only()}, timeout=1800, scaledown_window=300)
@modal.concurrent(max_inputs=32)
class Model:
    """The model on one GPU; Modal starts more of them while requests wait."""

    @modal.enter()  # type: ignore[untyped-decorator]  # Modal's types are in .venv-modal only
    def start(self) -> None:
        """Start the engine, before the first request."""
        from deploy.huggingface.handler import EndpointHandler  # in the container only

        self._handler = EndpointHandler(str(ROOT))

    @modal.method()  # type: ignore[untyped-decorator]
    def answer(self, request: dict[str, Any]) -> Any:
        """Answer one request, or a list of them; see `EndpointHandler`."""
        return self._handler(request)

    @modal.fastapi_endpoint(method="POST", requires_proxy_auth=True)  # type: ignore[untyped-decorator]
    def ask(self, request: dict[str, Any]) -> Any:
        """The same over HTTP, for callers with a key of Modal's."""
        return self._handler(request)

    @modal.exit()  # type: ignore[untyped-decorator]
    def stop(self) -> None:
        """End the engine."""
        self._handler.model.engine.close()
