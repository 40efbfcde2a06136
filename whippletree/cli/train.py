"""`whippletree train`: runs the trainer's driver against the system that runs in a folder."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from whippletree.cli import endpoints, identity
from whippletree.cli.console import UserError, run
from whippletree.cli.project import DEFAULT_RUN_DIR, ROOT, TRAIN_PYTHON
from whippletree.cli.supervisor import run_job


def train(
    config: Annotated[
        Path, typer.Argument(help="The training configuration, TOML; see examples/quickstart/config.toml.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override, such as rl.steps=4; may be repeated.")
    ] = None,
    run_dir: Annotated[Path, typer.Option(help="Folder of the running system.")] = DEFAULT_RUN_DIR,
    runs: Annotated[Path, typer.Option(help="Where runs/NAME is written.")] = Path("runs"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew where an unfinished run could go on.")] = False,
) -> None:
    """Train a policy with the system that `whippletree up` started.

    Declares rollouts, waits for the agents, turns their calls into samples, trains, publishes the new weights. Writes
    runs/NAME: metrics.jsonl, checkpoints/, plots/, summary.json.

    Example: whippletree train examples/quickstart/config.toml --set rl.steps=4
    """
    if not config.is_file():
        run(_refuse(f"CONFIG: no such file: {config}"))
    found = endpoints.read(run_dir)
    if found is None:
        run(_refuse(f"--run-dir {run_dir}: nothing runs there; start it with `whippletree up --model DIR`"))
    key = identity.access(run_dir).api_key_file
    command = driver_command(config, gateway=found.gateway, key=key, runs=runs, overrides=overrides or [], fresh=fresh)
    run(_train(command))


def driver_command(
    config: Path, *, gateway: str, key: Path | None, runs: Path, overrides: list[str], fresh: bool
) -> tuple[str, ...]:
    """Command line of the driver; `key` = the file of its key, None = it has none."""
    return (
        *(sys.executable, "-m", "trainer_svc", str(config.resolve())),
        *(("--access.api_key_file", str(key.resolve())) if key is not None else ()),
        *("--gateway", gateway, "--runs", str(runs.resolve()), "--python", str(TRAIN_PYTHON)),
        *("--cache", str(ROOT / ".cache")),
        *(("--fresh", "true") if fresh else ()),
        *(argument for item in overrides for argument in ("--set", item)),
    )


async def _train(command: tuple[str, ...]) -> None:
    code = await run_job(command, {}, grace=30.0, log=None)
    if code:
        raise typer.Exit(code)


async def _refuse(message: str) -> None:
    raise UserError(message)
