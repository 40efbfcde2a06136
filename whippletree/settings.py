"""Settings of every service: defaults < TOML file (`--config`) < environment (`GATEWAY_STORE__PATH`) < argument.

Frozen; an unknown key is an error that names it. Each service has one class in its `settings.py`; `load` is called in
`__main__`, and nothing below `server.py` reads configuration.
"""

import argparse
import ipaddress
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    CliApp,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

S = TypeVar("S", bound="ServiceSettings")
T = TypeVar("T", bound="ServerTls | ClientTls")


class Section(BaseModel):
    """A part of the settings, handed to the part of the service that owns it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class MetricsSettings(Section):
    """Metrics of a process, for Prometheus."""

    listen: str = ""
    """host:port of `GET /metrics`, plain HTTP without keys: keep it inside. Port 0 = any free one. Empty = off."""


class TracingSettings(Section):
    """Traces of a process."""

    otlp: str = Field(default_factory=lambda: os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", ""))
    """OTLP over gRPC of an OpenTelemetry collector, `http://host:4317` or `https://...`; default is the environment's
    OTEL_EXPORTER_OTLP_ENDPOINT; empty = no traces. Headers with keys for it go into OTEL_EXPORTER_OTLP_HEADERS."""
    ratio: float = Field(default=1.0, ge=0, le=1)
    """Share of the traces that begin here that are kept; of one that a caller began, the caller decides."""


class ServiceSettings(BaseSettings):
    """Base of a service's settings. Give `env_prefix` in a subclass's model_config."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_nested_delimiter="__",
        use_attribute_docstrings=True,
        nested_model_default_partial_update=True,
    )


class ServerTls(Section):
    """TLS of a server: PEM files, read again when they change. Without a certificate the server speaks plain HTTP/2."""

    certificate: Path | None = None
    """Its certificate, followed by those of the authorities between."""
    key: Path | None = None
    """The certificate's private key."""
    client_authority: Path | None = None
    """Certificates of authorities; a client must then show a certificate of one of them. Absent = none is asked for."""

    @model_validator(mode="after")
    def _together(self) -> Self:
        return _complete(self, "client_authority", needs="certificate")


class ClientTls(Section):
    """TLS of a client: PEM files."""

    authority: Path | None = None
    """Certificates of the authorities that the server's must come from; turns TLS on."""
    certificate: Path | None = None
    """The client's own certificate, where the server asks for one."""
    key: Path | None = None
    """The certificate's private key."""
    server_name: str = ""
    """The name that the server's certificate must hold; empty = the host of its address."""

    @model_validator(mode="after")
    def _together(self) -> Self:
        return _complete(self, "certificate", needs="authority")


def _complete(tls: T, field: str, *, needs: str) -> T:
    """The same settings. ValueError where half of a pair is missing, or `field` is set without what it needs."""
    if (tls.certificate is None) != (tls.key is None):
        raise ValueError("certificate and key go together")
    if getattr(tls, field) is not None and getattr(tls, needs) is None:
        raise ValueError(f"{field} needs {needs}")
    return tls


class AccessSettings(Section):
    """How a client shows who it is, and makes sure whom it asks."""

    api_key: SecretStr = Field(default_factory=lambda: SecretStr(os.environ.get("WHIPPLETREE_API_KEY", "")))
    """An operator's key; WHIPPLETREE_API_KEY in the environment says it for every program. Never an argument: arguments
    are seen by everybody on the machine."""
    api_key_file: Path | None = None
    """A file that holds the key instead, read again when it changes."""
    tls: ClientTls = ClientTls()
    """TLS towards the server."""


class ServerSettings(ServiceSettings):
    """Base of the settings of a service that listens."""

    listen: str = "127.0.0.1:0"
    """`host:port` to serve on; port 0 = any free one, printed at start."""
    insecure_dev: bool = False
    """Ask nobody for a key or a token, on this machine alone: `listen` must name the loopback then."""
    tls: ServerTls = ServerTls()
    """TLS of the server."""

    metrics: MetricsSettings = MetricsSettings()
    """Where metrics are served."""
    telemetry: TracingSettings = Field(default_factory=TracingSettings)
    """Where traces are sent."""

    @model_validator(mode="after")
    def _insecure_only_on_loopback(self) -> Self:
        if self.insecure_dev and not is_loopback(self.listen):
            raise ValueError(f"insecure_dev: without keys only the loopback may be served, not {self.listen}")
        return self


class ReplicaSettings(ServerSettings):
    """Base of the settings of a service that may have several replicas behind Envoy, stopped while calls run."""

    notice: float = Field(default=3.0, ge=0)
    """Seconds at the beginning of a stop in which calls are still taken: Envoy needs two to see that it is over."""
    grace: float = Field(default=20.0, ge=0)
    """Seconds from SIGTERM on in which calls in flight may end; what is left is cut with an error. The process has
    ended 8 seconds later, so kill it no sooner; a second signal ends the wait."""


def is_loopback(address: str) -> bool:
    """Whether `host:port` can be reached from this machine alone; a name other than localhost counts as no."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load(kind: type[S], arguments: Sequence[str] | None = None) -> S:
    """Settings of `kind` from file, environment and arguments; exits with 2 and names the keys that do not fit."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config", type=Path)
    known, rest = parser.parse_known_args(sys.argv[1:] if arguments is None else list(arguments))
    if known.config is not None and not known.config.is_file():
        _fail(f"--config: no such file: {known.config}")

    class Loaded(kind):  # type: ignore[valid-type,misc]
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, known.config)

    Loaded.__doc__ = (kind.__doc__ or "") + "\n\n--config FILE: a TOML file with the same keys."
    try:
        settings: S = CliApp.run(Loaded, cli_args=rest)
    except ValidationError as error:
        _fail(
            "; ".join(
                ": ".join(filter(None, (".".join(map(str, item["loc"])), item["msg"]))) for item in error.errors()
            )
        )
    except SettingsError as error:
        _fail(str(error))
    return settings


def _fail(message: str) -> NoReturn:
    print(f"settings: {message}", file=sys.stderr)
    raise SystemExit(2)
