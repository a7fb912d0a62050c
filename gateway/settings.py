"""Settings of one gateway process, read from the environment (GATEWAY_PORT, …) and the command line."""

from __future__ import annotations

import ipaddress
import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from yarl import URL

_HostName = Annotated[str, Field(pattern=r"^(\*|[\w.-]+|[0-9A-Fa-f:]+)$")]


def _address(value: str) -> str:
    try:
        if URL(value).scheme in ("http", "https") and URL(value).host:
            return value.rstrip("/")
        reason = ""
    except ValueError as error:
        reason = f": {error}"
    shown = value.rpartition("@")[2]  # before it may be a password
    raise ValueError(f"{shown!r} is not an address such as http://127.0.0.1:5000{reason}")


_Address = Annotated[str, AfterValidator(_address)]


class SettingsError(Exception):
    """Settings that are right by themselves do not fit together."""


class ServerList(BaseModel):
    """Addresses of Cog servers that run the same, and the digest of their weights; None where it is not known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    upstreams: tuple[_Address, ...] = Field(min_length=1)
    weights_digest: str | None = None


class GatewaySettings(BaseSettings):
    """What an operator sets. Each field is an environment variable: GATEWAY_ and the name, upper case.

    Raises:
        ValidationError: an unknown keyword, or a value of the wrong type or out of range.
    """

    model_config = SettingsConfigDict(env_prefix="GATEWAY_", frozen=True, extra="forbid", env_ignore_empty=True)

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8080, ge=1, le=65535, description="port to listen on")
    cog_port: int | None = Field(
        None, ge=1, le=65535, description="another port to listen on, for those who know it as Cog's"
    )
    public_url: str | None = Field(
        None, pattern=r"^https?://[^/?#\s]+$", description="address that clients see, for links; None: as they asked"
    )
    upstreams: Annotated[tuple[_Address, ...], NoDecode] = Field(
        ("http://127.0.0.1:5000",), min_length=1, description="addresses of the Cog servers, with commas between"
    )
    servers_file: Path | None = Field(
        None,
        description='JSON file {"upstreams": […], "weights_digest": …} in place of these two settings, which is read '
        "again when it changes: the new servers take over when one of them is ready",
    )
    concurrency: int | None = Field(
        None,
        ge=1,
        description="predictions on a server beyond which only callers and adapters that have none there get one; "
        "fewer than its own limit; None: its own limit",
    )
    model: str = Field("local/model", pattern=r"^[\w.-]+/[\w.-]+$", description="OWNER/NAME that clients ask for")
    weights_digest: str | None = Field(None, description="digest of the weights; part of the version's id")
    playground: Path | None = Field(None, description="JSON file with the playground's examples")
    readme: Path | None = Field(None, description="Markdown file that the page /readme shows")
    database: Path = Field(default_factory=lambda: _folder() / "predictions.sqlite", description="the kept predictions")
    keep: bool = Field(True, description="false: predictions are in memory only, and for ten minutes")
    retention_days: float | None = Field(None, gt=0, description="older predictions are deleted; None: never")
    cache_mb: float | None = Field(
        None, gt=0, description="megabytes of predictions whose answers are given again; None: no cache"
    )
    cache_days: float = Field(30, gt=0, le=36500, description="older answers are not given again")
    cache_shared: bool = Field(False, description="callers also get answers that others' predictions had")
    shadow: _Address | None = Field(
        None, description="address of a Cog server with a candidate version, which is asked too; None: none"
    )
    shadow_share: float = Field(0.1, gt=0, le=1, description="share of the predictions that the candidate is asked")
    shadow_name: str = Field(
        "candidate", min_length=1, max_length=80, description="name of the candidate, whose answers are listed"
    )
    max_active: int = Field(1024, ge=1, description="predictions that run or wait; one more is refused")
    max_body_bytes: int = Field(4 << 20, ge=1024, description="limit of a request's body")
    max_output_bytes: int = Field(8 << 20, ge=1024, description="a prediction with more output and logs is ended")
    prefix_inputs: Annotated[tuple[str, ...], NoDecode] = Field(
        ("cols", "system_prompt", "messages"),
        description="inputs with which prompts begin; predictions with equal ones go to the same server, for its cache",
    )
    max_seconds: float = Field(1800, gt=0, description="a prediction that runs longer fails; waiting does not count")
    webhook_hosts: Annotated[tuple[str, ...] | None, NoDecode] = Field(
        None, description="hosts that webhooks may be sent to; * is any; None: any while only this machine can call"
    )
    drain_seconds: float = Field(60, ge=0, description="how long running predictions may take when the gateway stops")

    head_seconds: float = Field(20, gt=0, description="time for a client to send the headers of a request")
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="sites whose scripts may call, such as https://example.com, with commas between; *: any",
    )
    hosts: Annotated[tuple[_HostName, ...] | None, NoDecode] = Field(
        None,
        description="names under which clients may call the gateway, without ports, besides this machine's and that of "
        "public_url; *: any; None: where the gateway listens beyond loopback, IP addresses and names without a dot; "
        "with keys, any",
    )
    log_inputs: bool = Field(False, description="log predictions' inputs and errors' texts")
    _addresses: set[str] = PrivateAttr(default_factory=set)  # all that `servers` has ever said
    keys: Literal["required", "off"] = Field("off", description="required: each request needs a key of scripts/keys")

    @field_validator("upstreams", "webhook_hosts", "prefix_inputs", "cors_origins", "hosts", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """The parts of a list, which is one text in the environment."""
        return tuple(part.strip().rstrip("/") for part in value.split(",")) if isinstance(value, str) else value

    def allows_webhook(self, host: str) -> bool:
        """Whether webhooks may be sent to a host. A stranger must not make the gateway call into its own network."""
        if self.webhook_hosts is None:
            return self.is_local
        return "*" in self.webhook_hosts or host in self.webhook_hosts

    def allows_host(self, name: str) -> bool:
        """Whether clients may call the gateway by this name; an IPv6 address has no brackets."""
        if is_loopback(name) or name in (self.host, urlsplit(self.public_url or "").hostname):
            return True
        if self.hosts is None:
            return not is_loopback(self.host) and (self.keys == "required" or _is_no_site(name))
        return "*" in self.hosts or name in map(str.lower, self.hosts)

    def check(self) -> None:
        """Check that the settings fit together.

        Raises:
            SettingsError: a cache of answers cannot work, or a setting is for something that there is not.
        """
        # Names of an earlier version. With DOOR_KEYS unread, a gateway that should ask for keys would ask nobody.
        if old := [name for name in map(str.upper, type(self).model_fields) if f"DOOR_{name}" in os.environ]:
            raise SettingsError(f"DOOR_{old[0]}: this setting is called GATEWAY_{old[0]} now; rename it")
        unused = sorted({"shadow_share", "shadow_name"} & self.model_fields_set)
        if self.shadow is None and unused:
            text = f"GATEWAY_{unused[0].upper()}: no candidate is asked; set GATEWAY_SHADOW too, or remove it"
            raise SettingsError(text)
        unused = sorted({"upstreams", "weights_digest"} & self.model_fields_set)
        if self.servers_file is not None and unused:
            raise SettingsError(f"GATEWAY_{unused[0].upper()}: GATEWAY_SERVERS_FILE says it; remove one of the two")
        self._check_cache()

    def addresses(self) -> set[str]:
        """The addresses of all Cog servers that the gateway has asked or is to ask, also of the candidate."""
        with suppress(SettingsError):  # those before go on
            self.servers()
        return self._addresses | ({self.shadow} if self.shadow is not None else set())

    def servers(self) -> ServerList:
        """The Cog servers, and what they run, as the settings or their file say.

        Raises:
            SettingsError: the file cannot be read.
        """
        found = self._read_servers()
        self._addresses.update(found.upstreams)
        return found

    def _read_servers(self) -> ServerList:
        if self.servers_file is None:
            return ServerList(upstreams=self.upstreams, weights_digest=self.weights_digest)
        try:
            return ServerList.model_validate_json(self.servers_file.read_bytes())
        except OSError as error:
            raise SettingsError(f"GATEWAY_SERVERS_FILE: {self.servers_file}: {error.strerror}") from error
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'file'}: {one['msg']}" for one in error.errors())
            raise SettingsError(f"GATEWAY_SERVERS_FILE: {self.servers_file}: {wrong}") from error

    def _check_cache(self) -> None:
        if self.cache_mb is None:
            if unused := sorted({"cache_days", "cache_shared"} & self.model_fields_set):
                text = f"GATEWAY_{unused[0].upper()}: there is no cache; set GATEWAY_CACHE_MB too, or remove it"
                raise SettingsError(text)
            return
        if not self.servers().weights_digest:
            raise SettingsError(
                "GATEWAY_CACHE_MB: answers are kept for certain weights, and the gateway does not know their digest; "
                "start it with scripts/serve in a package with weights.lock, or set GATEWAY_WEIGHTS_DIGEST"
            )
        if not self.keep:
            text = "GATEWAY_CACHE_MB: with GATEWAY_KEEP=false there are no kept answers; remove one of the two"
            raise SettingsError(text)
        if self.cache_shared and self.keys == "off":
            raise SettingsError(
                "GATEWAY_CACHE_SHARED: without keys all callers share the cache anyway; "
                "set GATEWAY_KEYS=required too, or remove it"
            )

    @property
    def key_file(self) -> Path:
        """The file of the API keys. It is not the predictions', because commands change it while the gateway runs."""
        return self.database.with_name("keys.sqlite")

    @property
    def correction_file(self) -> Path:
        """The file of the corrections, which commands change too, and which is kept however long predictions are."""
        return self.database.with_name("corrections.sqlite")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it. A public address means that a proxy passes others' requests."""
        return self.public_url is None and is_loopback(self.host)

    @property
    def base_url(self) -> str:
        """The address for links where no request says under which name the client knows the gateway."""
        return self.public_url or self.local_url

    @property
    def local_url(self) -> str:
        """The address under which this machine reaches the gateway."""
        return local_url(self.host, self.port)


def local_url(host: str, port: int) -> str:
    """The address of a server that listens at `host`, from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _folder() -> Path:
    """The folder of what the gateway keeps, which is that of earlier versions where it exists."""
    old = Path(".door")
    return old if old.is_dir() else Path(".gateway")


def is_loopback(host: str) -> bool:
    """Whether a name or address always means this machine; an IPv6 address has no brackets."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name
        return False


def _is_no_site(name: str) -> bool:
    """Whether no site can have this name: an IP address, or a name without a dot, such as a container's."""
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return bool(name) and "." not in name
