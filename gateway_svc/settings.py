"""Settings of the gateway: `GATEWAY_STORE__PATH`, `--store.path`, or a TOML file."""

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from whippletree.settings import Section, ServiceSettings


class StoreSettings(Section):
    """The record."""

    path: Path = Path("record.db")
    """SQLite file; made where it is missing. One process at a time."""
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    """FULL: acknowledged writes survive loss of power. NORMAL: they survive kill -9 of the process alone."""
    capacity: int = Field(default=10_000, ge=1)
    """Writes that may wait for a commit; further ones wait for room."""
    readers: int = Field(default=4, ge=1)
    """Threads that read."""


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


class GatewaySettings(ServiceSettings):
    """The gateway: the record of rollouts, and the way to the engines."""

    model_config = SettingsConfigDict(env_prefix="GATEWAY_")

    listen: str = "127.0.0.1:0"
    """`host:port` to serve on; port 0 = any free one, printed at start."""
    log_level: str = "INFO"
    """Lowest level that is logged."""
    store: StoreSettings = StoreSettings()
    """The record."""
    engine: EngineSettings = EngineSettings()
    """The engines."""
    watch_quiet: float = Field(default=15.0, gt=0)
    """Seconds without a change after which a watch sends a bookmark."""
    grace: float = Field(default=5.0, ge=0)
    """Seconds that calls in flight get when the gateway stops."""
