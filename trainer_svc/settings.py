"""Settings of the driver's process: what depends on the machine, not on the experiment (that is `config.py`)."""

from pathlib import Path

from pydantic_settings import CliPositionalArg, SettingsConfigDict

from whippletree.settings import AccessSettings, ServerSettings


class TrainerSettings(ServerSettings):
    """Train a policy: python -m trainer_svc CONFIG.toml

    --set SECTION.KEY=VALUE: override of the configuration, such as rl.steps=4; may be repeated.
    """

    model_config = SettingsConfigDict(env_prefix="TRAINER_", cli_prog_name="trainer_svc")

    training: CliPositionalArg[Path]
    """The training configuration, TOML."""
    gateway: str = "127.0.0.1:8081"
    """host:port of the gateway's gRPC."""
    access: AccessSettings = AccessSettings()
    """Key and TLS towards the gateway."""
    patience: float = 600.0
    """Longest time that the gateway may be away before the run gives up, seconds."""
    listen: str = "127.0.0.1:0"
    """host:port where the ranks find the driver; port 0 = any free one."""
    runs: Path = Path("runs")
    """Folder of the runs; each gets `runs/NAME`."""
    python: Path = Path(".venv-train/bin/python")
    """Interpreter of the ranks' environment, with torch and megatron."""
    cache: Path = Path(".cache")
    """Folder of what another run of the same recipe can use again: warm-up weights."""
    fresh: bool = False
    """Begin anew even where an unfinished run of this configuration could go on."""
    log_level: str = "INFO"
    """Least level that is logged."""
