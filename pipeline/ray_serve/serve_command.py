"""What scripts/serve does with --ray or --address."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Final

import ray
from pydantic import ValidationError
from ray import serve
from ray.exceptions import RayError

from gateway.settings import GatewaySettings, local_url
from pipeline.batch.errors import BatchError
from pipeline.batch.ray_cluster import connect
from pipeline.package.cog_server import served_model
from pipeline.package.errors import PortError
from pipeline.package.free_ports import Listener, check_ports
from pipeline.paths import ENVIRONMENT, ROOT
from pipeline.ray_serve.application import Size, deploy_gateway, deploy_model, start_proxy
from pipeline.ray_serve.gateway_replica import GATEWAY
from pipeline.ray_serve.proxy_errors import PROXY_ENVIRONMENT
from pipeline.weights.console import say
from pipeline.weights.default_weights import ensure_weights
from pipeline.weights.digest import sha256
from serving.config import Settings
from serving.errors import ServingError

_READY: Final = """
READY on {url}  ({end})
  API   {url}/v1  as Replicate's: REPLICATE_BASE_URL={url}, model {model}
  Other weights, without a pause: the same command with --address {cluster} in place of --ray
"""


def serve_on_ray(host: str, port: int, size: Size, address: str | None) -> int:
    """Deploy the package; on a cluster of its own, run until a signal.

    Args:
        host, port: where the gateway listens.
        address: the address of a cluster, see `connect`; None starts Ray on this machine.

    Returns:
        The exit code; 1 with a message if it cannot be served.
    """
    try:
        if size.max_replicas is not None and size.max_replicas < (size.replicas or 1):
            raise BatchError(f"--max-replicas {size.max_replicas} is less than --replicas {size.replicas}")
        ensure_weights()
        os.chdir(ROOT)  # paths of the weights in the settings are relative to it
        gateway = _gateway_settings(host, port)
        if address is None:
            check_ports([Listener("the gateway", host, port, "--gateway-port")])
        connect(address, {**ENVIRONMENT, **PROXY_ENVIRONMENT})
        start_proxy(host, port)
        settings = Settings()
        deploy_model(size, settings, sha256(settings.weights_lock), gateway.prefix_inputs)
        deploy_gateway(gateway)
    except (BatchError, PortError, RayError, ServingError, OSError, ValueError, RuntimeError) as error:
        say(f"error: {error}")
        return 1
    end = "Ctrl-C ends it" if address is None else f"to end it: {ROOT}/.venv-ray/bin/serve shutdown"
    cluster = ray.get_runtime_context().gcs_address
    say(_READY.format(url=local_url(host, port), end=end, model=gateway.model, cluster=cluster))
    if address is None:
        _wait_for_signal()
        say("finishing running predictions; press Ctrl-C again to stop now")
        serve.delete(GATEWAY)  # which still needs the model
        serve.shutdown()
    ray.shutdown()
    return 0


def _gateway_settings(host: str, port: int) -> GatewaySettings:
    """The gateway's settings.

    Raises:
        BatchError: one is wrong, or would be ignored.
    """
    for name, reason in [
        ("GATEWAY_UPSTREAMS", "on Ray the gateway has its own replicas"),
        ("GATEWAY_SERVERS_FILE", "on Ray the gateway has its own replicas"),
        ("GATEWAY_CACHE_MB", "on Ray the weights can change while it runs, and kept answers would be of others"),
    ]:
        if os.environ.get(name):
            raise BatchError(f"{name}: {reason}; remove it")
    try:
        name = os.environ.get("GATEWAY_MODEL") or served_model()[0]
        return GatewaySettings(host=host, port=port, model=name)
    except ValidationError as error:
        lines = [f"GATEWAY_{'.'.join(map(str, one['loc'])).upper()}: {one['msg']}" for one in error.errors()]
        raise BatchError("The gateway's settings are wrong:\n" + "\n".join(lines)) from error


def _wait_for_signal() -> None:
    ended = threading.Event()

    def end(*_: object) -> None:
        if ended.is_set():
            sys.exit(130)
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    ended.wait()
