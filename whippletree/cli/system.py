"""The running system as one value: what `up` and `demo` share.

In: `Options`. Out: all parts running and supervised, the model registered, `endpoints.json` written. Order: gateway and
engine start together; the model is registered as soon as the gateway answers, then bridge, Envoy and controller start;
the engine, which takes longest, may be awaited later (`engine_ready`), so that other work can go on meanwhile.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from whippletree import open_files, tasks
from whippletree.cli import endpoints, identity, plan, ports
from whippletree.cli.console import Failure, UserError
from whippletree.cli.engine import Device, engine_command
from whippletree.cli.envoy import render, templates, write
from whippletree.cli.project import ROOT, TRAIN_PYTHON
from whippletree.cli.supervisor import PartError, PortTakenError, Report, Supervisor
from whippletree.client import open_client

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a user chooses; ports: 0 = any free one."""

    model_dir: Path
    run_dir: Path
    model_name: str = "policy"
    port: int = 8080
    engine_port: int = 0
    gateway_port: int = 0
    bridge_port: int = 0
    controller_port: int = 0
    device: Device = "auto"
    engine_url: str = ""
    together: bool = False
    insecure_dev: bool = False
    otlp: str = ""


class System:
    """Running parts; made by `system`."""

    def __init__(self, layout: plan.Layout, supervisor: Supervisor, device: Device) -> None:
        self.layout = layout
        self._supervisor = supervisor
        self._device = device
        self._engine: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start everything; all but the engine are ready afterwards. PartError, UserError."""
        layout = self.layout
        prepare_keys(layout)
        if not layout.engine_url:
            command = engine_command(
                layout.model_dir, port=layout.ports.engine, device=self._device, python=TRAIN_PYTHON
            )
            part = plan.engine(layout, command.argv, command.environment)
            self._engine = asyncio.create_task(self._supervisor.start([part]))
            self._supervisor.after_restart("engine", self._register)
        await self._supervisor.start([plan.gateway(layout)])
        await self._register()
        config = plan.envoy_config(layout)
        write(render(templates(), plan.envoy_values(layout), config), config)
        parts = [*plan.bridges(layout), plan.envoy(layout), plan.controller(layout)]
        await self._supervisor.start(parts)  # the controller last: it stops first, while its agents' calls still work

    async def engine_ready(self) -> None:
        """Wait for the engine. PartError."""
        if self._engine is not None:
            await self._engine

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """`work`'s result, unless a part is given up before: PartError then, and `work` is cancelled."""
        task = asyncio.ensure_future(work)
        failed = asyncio.ensure_future(self._supervisor.failed())
        waits: set[asyncio.Future[Any]] = {task, failed}
        if self._engine is not None:
            waits.add(asyncio.ensure_future(_only_failure(self._engine)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            for wait in waits - {task}:
                if wait.done():
                    wait.result()
            raise AssertionError("one of them is done")
        finally:
            await tasks.end(*waits)

    async def close(self) -> None:
        """Wait for the engine no longer; the supervisor stops it."""
        if self._engine is not None:
            await tasks.end(self._engine)

    async def _register(self) -> None:
        access = identity.access(self.layout.run_dir)
        async with open_client(f"{plan.HOST}:{self.layout.ports.gateway}", access, patience=30.0) as client:
            await client.register_model(plan.model(self.layout))


@asynccontextmanager
async def system(options: Options, report: Report) -> AsyncIterator[System]:
    """A system that is stopped when the block ends, whatever happened. UserError, Failure."""
    plan.read_model_config(options.model_dir)
    if not options.engine_url and not TRAIN_PYTHON.exists():
        raise UserError(f"{TRAIN_PYTHON}: no environment for the engine; make it with `make setup`")
    open_files.raise_limit()  # every part inherits it, Envoy and the engine too
    layout = choose(options)
    with _locked(options.run_dir):

        def publish() -> None:
            endpoints.write(options.run_dir, plan.endpoints(layout, pid=os.getpid(), pids=supervisor.pids))

        supervisor = Supervisor(options.run_dir, report, on_change=publish)
        try:
            async with supervisor:
                running = System(layout, supervisor, options.device)
                try:
                    yield running
                finally:
                    await running.close()
        except PortTakenError as error:
            raise UserError(str(error)) from error
        except PartError as error:
            raise Failure(str(error)) from error
        finally:
            endpoints.path(options.run_dir).unlink(missing_ok=True)


def choose(options: Options) -> plan.Layout:
    """Absolute paths and ports; a port of 0 becomes a free one. UserError where one that was chosen is taken."""
    if options.otlp and not options.otlp.startswith("http://"):
        raise UserError(f"--otlp {options.otlp}: the collector of traces is an http://host:port, its OTLP over gRPC")
    wanted = {
        "envoy": options.port,
        "envoy_admin": 0,
        "gateway": options.gateway_port,
        "bridge": options.bridge_port,
        "bridge_http": 0,
        "controller": options.controller_port,
        "engine": options.engine_port,
        "gateway_metrics": 0,
        "bridge_metrics": 0,
        "controller_metrics": 0,
    }
    for name, port in wanted.items():
        if port and not ports.is_free(port):
            raise UserError(f"{name}: port {port} is taken; choose another with {plan.port_setting(name)}")
    free = iter(ports.free_ports(len(wanted)))
    chosen = {name: port or next(free) for name, port in wanted.items()}
    if options.together:
        chosen["bridge"] = chosen["gateway"]
    return plan.Layout(
        root=ROOT,
        run_dir=options.run_dir.resolve(),
        model_dir=options.model_dir.resolve(),
        model_name=options.model_name,
        ports=plan.Ports(**chosen),
        engine_url=options.engine_url.rstrip("/"),
        otlp=options.otlp,
        together=options.together,
        insecure_dev=options.insecure_dev,
    )


def prepare_keys(layout: plan.Layout) -> None:
    """Make the keys that are missing. UserError where the folder's cannot be used."""
    if layout.insecure_dev:
        return
    try:
        identity.prepare(layout.run_dir)
    except (OSError, ValueError) as error:
        raise UserError(f"--run-dir {layout.run_dir}: its keys cannot be used ({error})") from error


@contextlib.contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """Make the folder; one system in each. UserError names it."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        file = (run_dir / "lock").open("a")
    except OSError as error:
        raise UserError(f"--run-dir {run_dir}: cannot write there ({error.strerror})") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"--run-dir {run_dir}: another whippletree runs in this folder") from error
        yield


async def _only_failure(task: asyncio.Task[None]) -> None:
    """Raise what `task` raises; where it succeeds, never return."""
    await asyncio.shield(task)
    await asyncio.Event().wait()
