"""Settings of the gateway: `GATEWAY_STORE__PATH`, `--store.path`, or a TOML file."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from gateway_svc.engines.allowed import LOOPBACK, Pattern, pattern
from whippletree.settings import ReplicaSettings, Section


class StoreSettings(Section):
    """The record."""

    path: Path = Path("record.db")
    """SQLite file; made where it is missing. One process at a time."""
    url: SecretStr = SecretStr("")
    """A PostgreSQL database instead, `postgresql+psycopg://USER@HOST/DATABASE`, which several gateways may share. Needs
    the extra `postgresql`. A password belongs into the environment or ~/.pgpass, not into an argument."""
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    """FULL: acknowledged writes survive loss of power. NORMAL: they survive kill -9 of the process alone."""
    capacity: int = Field(default=10_000, ge=1)
    """Writes that may wait for a commit; further ones wait for room."""
    readers: int = Field(default=4, ge=1)
    """Threads that read."""
    probe_pause: float = Field(default=1.0, gt=0)
    """Seconds between two looks whether a store without room has some again."""
    retention_days: float = Field(default=0.0, ge=0)
    """Runs in which nothing happened for so many days, and whose rollouts have all ended, are deleted; 0 = kept."""

    @field_validator("url")
    @classmethod
    def _postgresql(cls, url: SecretStr) -> SecretStr:
        if url.get_secret_value() and not url.get_secret_value().startswith("postgresql+psycopg://"):
            raise ValueError("a URL begins with postgresql+psycopg://")
        return url

    @property
    def where(self) -> Path | str:
        """The path, or the URL where there is one."""
        return self.url.get_secret_value() or self.path


class EngineSettings(Section):
    """How engines are asked."""

    generate_timeout: float = Field(default=1800.0, gt=0)
    """Seconds for one generation, or for loading weights."""
    control_timeout: float = Field(default=30.0, gt=0)
    """Seconds for any other request."""
    tries: int = Field(default=4, ge=1)
    """How often engines are asked for one response before ENGINE_UNAVAILABLE."""
    pause: float = Field(default=0.1, ge=0)
    """Seconds before the second try; doubled with each further one."""
    allowed: tuple[str, ...] = LOOPBACK
    """Where engines may be: HOST, HOST:PORT or HOST:LOW-HIGH, with an address, a network (127.0.0.0/8), a name or
    *.DOMAIN as HOST. Registering one elsewhere is refused. Names must lead into one of the networks, where there
    are any. Link-local addresses, and others at which clouds serve metadata, never are allowed."""
    check_pause: float = Field(default=5.0, gt=0)
    """Seconds between two looks at every engine: whether it answers, holds its lease, has its model's weights."""
    max_in_flight: int = Field(default=0, ge=0)
    """Generations that this gateway has at one engine at most, where the engine names no limit; 0 = any number."""
    max_waiting: int = Field(default=10_000, ge=0)
    """Generations of one model that wait for room at its engines at most; further ones get OVERLOADED."""
    spread: float = Field(default=1.5, ge=1)
    """A rollout leaves its own engine for the least loaded one when that engine has this many times its share."""

    @field_validator("allowed")
    @classmethod
    def _parsed(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for text in patterns:
            pattern(text)
        return patterns

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """`allowed`, parsed."""
        return tuple(pattern(text) for text in self.allowed)


class IdentitySettings(Section):
    """Who may call, and what attempts' tokens are."""

    folder: Path | None = None
    """Folder of keys, as `whippletree keys` makes it; needed unless `insecure_dev`. Gateways of one record share it."""
    lifetime: float = Field(default=86_400.0, gt=0)
    """Seconds for which a token is valid whose rollout sets no timeout."""
    slack: float = Field(default=3600.0, gt=0)
    """Seconds for which a token is valid beyond its rollout's timeout."""


class GatewaySettings(ReplicaSettings):
    """The gateway: the record of rollouts, and the way to the engines."""

    model_config = SettingsConfigDict(env_prefix="GATEWAY_")

    log_level: str = "INFO"
    """Lowest level that is logged."""
    store: StoreSettings = StoreSettings()
    """The record."""
    engine: EngineSettings = EngineSettings()
    """The engines."""
    identity: IdentitySettings = IdentitySettings()
    """Keys and tokens."""
    watch_quiet: float = Field(default=15.0, gt=0)
    """Seconds without a change after which a watch sends a bookmark."""
    retry_grace: float = Field(default=0.8, ge=0)
    """Seconds for which a generation whose harness went away waits for its retry before it is aborted at the engine;
    doubled with each retry that came, to 8 at most. The official clients come back first after 0.4 to 0.5 s."""
    watch_patience: float = Field(default=60.0, gt=0)
    """Seconds that a watcher may take for one message; then its watch ends with OVERLOADED, to be resumed."""

    @model_validator(mode="after")
    def _identity_or_not(self) -> Self:
        if not self.insecure_dev and self.identity.folder is None:
            raise ValueError("identity.folder: name the folder of keys, or say --insecure_dev true")
        return self
