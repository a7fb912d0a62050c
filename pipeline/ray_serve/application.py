"""Deploys the package on Ray Serve: an application with the model's replicas, and one with the gateway."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.schema import ProxyStatus

from gateway.settings import GatewaySettings
from pipeline.batch.ray_cluster import find_places
from pipeline.paths import ENVIRONMENT
from pipeline.ray_serve.gateway_replica import GATEWAY, MODEL, GatewayReplica
from pipeline.ray_serve.model_replica import ModelReplica
from pipeline.ray_serve.prefix_router import PrefixRouter
from pipeline.weights.console import say
from serving.config import Settings

_HEAD: Final = {"node:__internal_head__": 0.001}  # where the HTTP proxy and the file of predictions are
_STREAMS: Final = 100_000  # requests of the gateway at once, which has limits of its own
_PROXY_SECONDS: Final = 600.0  # of waiting for the HTTP proxy; Ray itself gives it 60, too few on busy cores
_QUICK: Final = {"metrics_interval_s": 1.0, "look_back_period_s": 5.0, "upscale_delay_s": 5.0, "downscale_delay_s": 300}


@dataclass(frozen=True, slots=True)
class Size:
    """How much is deployed.

    Args:
        replicas: number of replicas; None for one on each GPU, or on each machine if there are no GPUs.
        max_replicas: Ray adds replicas up to this number while requests wait; None keeps the number.
        concurrency: requests of a replica at once.
    """

    replicas: int | None
    max_replicas: int | None
    concurrency: int


def start_proxy(host: str, port: int) -> None:
    """Start Ray Serve and its HTTP proxy at this address, where it does not run yet.

    Raises:
        TimeoutError: the proxy does not start.
        RuntimeError, RayError: it cannot listen there, or Ray ended.
    """
    until = time.monotonic() + _PROXY_SECONDS
    try:
        http = {"host": host, "port": port}
        serve.start(proxy_location="HeadOnly", http_options=http, logging_config={"log_level": "WARNING"})
    except TimeoutError:  # the proxy goes on starting
        say("Ray's HTTP proxy takes long to start; waiting for it")
        while ProxyStatus.HEALTHY not in (found := serve.status().proxies.values()):
            if ProxyStatus.UNHEALTHY in found or time.monotonic() > until:
                raise TimeoutError(f"Ray's HTTP proxy does not start at {host}:{port}; is the port free?") from None
            time.sleep(1)


def deploy_model(size: Size, settings: Settings, lock: str, prefix_inputs: tuple[str, ...]) -> None:
    """Deploy the model, or replace one replica after the other where it is deployed already; returns once all run.

    Raises:
        BatchError: there is no room.
        RuntimeError: a replica does not start; the message has its error.
    """
    room, given = find_places(size.max_replicas or size.replicas, settings, "--replicas")
    replicas = size.replicas or (1 if size.max_replicas else room.engines)
    environment = _in({"TOKEN_TRACE": "1", "CONFIDENCE": "1", **given})
    model = serve.deployment(ModelReplica).options(
        name=MODEL,
        **_number(replicas, size),
        max_ongoing_requests=size.concurrency,
        ray_actor_options={"num_cpus": room.cpus, "num_gpus": room.gpus, **environment},
        request_router_config=RequestRouterConfig(
            request_router_class=PrefixRouter, request_router_kwargs={"prefix_inputs": list(prefix_inputs)}
        ),
        health_check_period_s=5.0,
        health_check_timeout_s=90.0,  # the check itself takes at most 60 s
        graceful_shutdown_timeout_s=1800.0,  # an old replica finishes its predictions, whose limit this is
    )
    serve.run(model.bind(lock), name=MODEL, route_prefix=None)


def deploy_gateway(settings: GatewaySettings) -> None:
    """Deploy the gateway where none runs; another's settings stay as they are.

    Args:
        settings: the settings of the gateway; Ray's HTTP proxy listens at their address.
    """
    if GATEWAY in serve.status().applications:
        return
    given = {name: value for name, value in os.environ.items() if name.startswith(("GATEWAY_", "OTEL_"))}
    own = settings.model_copy(update={"database": settings.database.resolve()})
    given |= {f"GATEWAY_{name.upper()}": str(getattr(own, name)) for name in ("host", "port", "model", "database")}
    gateway = serve.deployment(GatewayReplica).options(
        name=GATEWAY,
        num_replicas=1,
        max_ongoing_requests=_STREAMS,
        ray_actor_options={"num_cpus": 0, "resources": _HEAD, **_in(given)},
        graceful_shutdown_timeout_s=settings.drain_seconds + 5,
    )
    serve.run(gateway.bind(), name=GATEWAY, route_prefix="/")


def _number(replicas: int, size: Size) -> dict[str, Any]:
    if size.max_replicas is None:
        return {"num_replicas": replicas}
    target = {"target_ongoing_requests": size.concurrency}  # more run or wait than replicas have places for
    return {"autoscaling_config": {"min_replicas": replicas, "max_replicas": size.max_replicas, **target, **_QUICK}}


def _in(environment: Mapping[str, str]) -> dict[str, Any]:
    """The actor option for environment variables."""
    return {"runtime_env": {"env_vars": {**ENVIRONMENT, **environment}}}
