"""`whippletree demo`: the quick start from nothing to a trained policy, then everything is stopped.

Order: data and a small untrained model are prepared; gateway, bridge, Envoy and controller start; the engine starts
while the driver warms the policy up; the driver measures, trains, measures again. Ctrl-C at any moment ends all of
it, and the same command goes on where it was.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from whippletree.cli import identity
from whippletree.cli.console import OUT, Failure, UserError, report, run
from whippletree.cli.engine import Device
from whippletree.cli.project import ROOT, TRAIN_PYTHON
from whippletree.cli.supervisor import describe_exit, run_job
from whippletree.cli.system import Options, System, system
from whippletree.cli.train import driver_command

EXAMPLE = ROOT / "examples" / "quickstart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What a user chooses."""

    name: str
    seed: int
    nonsense: bool
    overrides: tuple[str, ...]
    device: Device
    port: int
    fresh: bool
    runs: Path
    run_dir: Path
    cache: Path

    @property
    def prepared(self) -> Path:
        """Folder of data and untrained model."""
        return self.cache / "quickstart" / f"seed-{self.seed}"


def demo(
    seed: Annotated[int, typer.Option(help="Decides model, data and sampling order.")] = 1,
    nonsense: Annotated[
        bool, typer.Option("--nonsense", help="The calculator answers nonsense: the reward must not rise.")
    ] = False,
    name: Annotated[str, typer.Option(help="Results go to runs/NAME, logs to run/NAME/logs.")] = "quickstart",
    steps: Annotated[int | None, typer.Option(help="Training steps instead of the configuration's.", min=0)] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override of the configuration, such as rl.groups=4.")
    ] = None,
    device: Annotated[Device, typer.Option(help="auto, cpu or cuda: where the engine computes.")] = "auto",
    port: Annotated[int, typer.Option(help="Envoy's port; 0 = any free one.", min=0, max=65535)] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew where an unfinished run could go on.")] = False,
) -> None:
    """Train a small policy through a real agent that uses a calculator, on this machine.

    Takes about ten minutes on two cores. Writes runs/NAME/summary.json, metrics.jsonl, plots/, checkpoints/. Afterwards
    look at any rollout: whippletree rollouts list --run-dir run/NAME

    Example: whippletree demo --seed 7 --steps 4 --name short
    """
    more = [f"rl.steps={steps}"] if steps is not None else []
    run(
        run_demo(
            Demo(
                name=name,
                seed=seed,
                nonsense=nonsense,
                overrides=(*more, *(overrides or ())),
                device=device,
                port=port,
                fresh=fresh,
                runs=Path("runs").resolve(),
                run_dir=Path("run").resolve() / name,
                cache=ROOT / ".cache",
            )
        )
    )


async def run_demo(chosen: Demo) -> None:
    """All of it. UserError, Failure."""
    if not TRAIN_PYTHON.exists():
        raise UserError(f"{TRAIN_PYTHON}: no environment for engine and ranks; make it with `make setup`")
    await _prepare(chosen)
    options = Options(
        model_dir=chosen.prepared / "model", run_dir=chosen.run_dir, port=chosen.port, device=chosen.device
    )
    async with system(options, report) as running:
        await running.start()
        code = await running.during(_train(chosen, running))
    if code:
        raise Failure(f"the driver {describe_exit(code)}; logs are in {chosen.run_dir / 'logs'}")
    _conclude(chosen)


async def _prepare(chosen: Demo) -> None:
    report("prepare", f"data and an untrained model in {chosen.prepared}")
    command = (
        str(TRAIN_PYTHON),
        str(EXAMPLE / "prepare.py"),
        "--out",
        str(chosen.prepared),
        "--seed",
        str(chosen.seed),
    )
    if code := await run_job(command, {}, grace=5.0, log=None):
        raise Failure(f"examples/quickstart/prepare.py {describe_exit(code)}")


async def _train(chosen: Demo, running: System) -> int:
    command = driver_command(
        EXAMPLE / "config.toml",
        gateway=f"127.0.0.1:{running.layout.ports.gateway}",
        key=identity.access(chosen.run_dir).api_key_file,
        runs=chosen.runs,
        overrides=config_overrides(chosen),
        fresh=chosen.fresh,
    )
    return await run_job(command, {}, grace=30.0, log=None)


def config_overrides(chosen: Demo) -> list[str]:
    """What differs from examples/quickstart/config.toml; the user's own come last and win."""
    files = {
        "model.path": "model",
        "data.train": "train.jsonl",
        "data.heldout": "heldout.jsonl",
        "warmup.demonstrations": "demonstrations.jsonl",
    }
    made = [f"run.name={json.dumps(chosen.name)}", f"run.seed={chosen.seed}"]
    made += [f"{key}={json.dumps(str(chosen.prepared / name))}" for key, name in files.items()]
    if chosen.nonsense:
        made.append('agent.environment.CALCULATOR="nonsense"')
    return [*made, *chosen.overrides]


def _conclude(chosen: Demo) -> None:
    folder = chosen.runs / chosen.name
    summary: Mapping[str, Any] = json.loads((folder / "summary.json").read_text())
    OUT.print(json.dumps(summary, indent=2), markup=False)
    OUT.print(f"plot      {folder / 'plots'}", markup=False)
    OUT.print(f"look at   whippletree rollouts list --run-dir {chosen.run_dir}", markup=False)
    before, after = summary.get("accuracy_before"), summary.get("accuracy_after")
    if before is not None and after is not None:
        OUT.print(f"held-out accuracy {before:.3f} -> {after:.3f} ({after - before:+.3f})", style="bold", markup=False)
