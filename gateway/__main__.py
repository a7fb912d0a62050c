"""Runs the gateway: python -m gateway --upstream http://127.0.0.1:5000 --port 8080."""

from __future__ import annotations

import argparse
import resource
import socket
import sys

import uvicorn
from pydantic import ValidationError

from gateway.app import create_app
from gateway.http.head_limits import limited_protocol
from gateway.http.request_log import configure_logging
from gateway.settings import GatewaySettings, SettingsError

# Longer than clients and load balancers (60 s) keep an idle connection: else one sends a request while it is closed.
_IDLE_SECONDS = 75
_OPEN = """
WARNING: the gateway listens on {host} and asks for no API key. Everybody who reaches this machine can run predictions,
read all of them and delete them. Set GATEWAY_KEYS=required and make keys with `scripts/keys create NAME`.

"""


def main() -> None:
    """Parse the options, which override the environment, and run until a signal."""
    settings = _read_settings()
    if settings.keys == "off" and not settings.is_local:
        sys.stderr.write(_OPEN.format(host=settings.host))
    configure_logging()
    _allow_many_connections()
    ports = [settings.port, *([settings.cog_port] if settings.cog_port else [])]
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_config=None,
        http=limited_protocol(settings.head_seconds),
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_keep_alive=_IDLE_SECONDS,
        # Open requests first; then the application finishes predictions that nobody waits for.
        timeout_graceful_shutdown=round(settings.drain_seconds) or None,
    )
    uvicorn.Server(config).run(sockets=[_listening(settings.host, port) for port in ports])


def _listening(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address; the process ends with a message where it cannot be."""
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
    except OSError as error:
        sys.exit(f"The gateway cannot listen on {host}, port {port}: {error.strerror}")
    return opened


def _read_settings() -> GatewaySettings:
    options = {name: value for name, value in vars(_parse_options()).items() if value is not None}
    try:
        settings = GatewaySettings(**options)
        settings.check()
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        sys.exit("The gateway's settings are wrong:\n" + "\n".join(lines))
    except SettingsError as error:
        sys.exit(f"The gateway's settings are wrong:\n{error}")
    return settings


def _allow_many_connections() -> None:
    """Raise the limit of open files, which is usually 1024: each stream needs two connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m gateway", description=GatewaySettings.__doc__)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--cog-port", type=int, help="another port to listen on, for those who know it as Cog's")
    parser.add_argument("--upstream", dest="upstreams", help="addresses of Cog servers, with commas between")
    parser.add_argument("--model", help="OWNER/NAME that clients ask for")
    parser.add_argument("--weights-digest")
    parser.add_argument("--database", help="file of the kept predictions")
    return parser.parse_args()


if __name__ == "__main__":
    main()
