"""Settings of the controller. Environment: `CONTROLLER_GATEWAY`, `CONTROLLER_LOCAL__PYTHON`, ..."""

import os
import sys
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from whippletree.settings import AccessSettings, Section, ServerSettings


class LocalSettings(Section):
    """The local runner."""

    work_root: Path = Path("run/controller")
    """Folder of attempts and logs; one controller at a time. It also remembers the worker's name."""
    python: Path = Path(sys.executable)
    """Interpreter of Python programs."""
    path: str = os.environ.get("PATH", os.defpath)
    """PATH of attempts."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Added to the environment of every attempt; a rollout's own entries win."""
    output_tail: int = Field(default=48 << 10, ge=0, le=60 << 10)
    """Bytes of stdout and of stderr, each from its end, that become Log events; 0 = none."""
    keep: Literal["none", "failed", "all"] = "none"
    """Which attempts' folders stay after the report."""
    fork_servers: int = Field(default=8, ge=1)
    """Warm interpreters kept at once; the one unused for longest gives way."""
    preload_timeout: float = Field(default=120.0, gt=0)
    """Seconds that importing the modules of a warm interpreter may take."""


class ControllerSettings(ServerSettings):
    """Carries out rollouts as local processes."""

    model_config = SettingsConfigDict(env_prefix="CONTROLLER_")

    listen: str = "127.0.0.1:0"
    """Where health and reflection are served, host:port; port 0 = any free one."""
    gateway: str = "127.0.0.1:50051"
    """The gateway, host:port."""
    access: AccessSettings = AccessSettings()
    """Key and TLS towards the gateway."""
    api: str = "http://127.0.0.1:8080"
    """Base URL of Envoy, as agents see it."""
    worker: str = ""
    """Name of this controller at the gateway; empty = host name and a number that the work root remembers."""
    max_running: int = Field(default=4 * (os.cpu_count() or 1), ge=1)
    """Attempts under way at once."""
    start_rate: float = Field(default=50.0, gt=0)
    """Attempts begun per second, on average; a burst is a second's worth."""
    timeout: float = Field(default=1800.0, gt=0)
    """Seconds of an attempt whose rollout does not say."""
    grace: float = Field(default=5.0, ge=0)
    """Seconds from SIGTERM to SIGKILL of an attempt."""
    patience: float = Field(default=10.0, ge=0)
    """Seconds that the controller's own stop waits for the gateway, after the grace."""
    log_level: str = "INFO"
    """Least level of the log on standard error."""
    local: LocalSettings = LocalSettings()
    """The local runner."""
