"""Load with random `kill -9` of gateway, bridge, Envoy, controller and engine; then the record is held against what was
acknowledged meanwhile.

Run: `make chaos SECONDS=600` (SEED=1, ENGINE=fake or sglang, TOGETHER=1 for gateway and bridge in one process). Agents
go through Envoy, bridge and gateway; the parts run under the product's own supervisor. Prints one JSON object as the
last line; exit code 1 where anything is missing, doubled, not ended, or left over.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf.duration_pb2 import Duration
from whippletree.v1 import rollout_pb2, rollout_pb2_grpc, run_pb2, run_pb2_grpc

from benchmarks import chaos_agent, chaos_check
from tests.fakes.tiny_model import write_tiny_model
from whippletree.channel import call, connect
from whippletree.cli import identity, plan
from whippletree.cli.engine import engine_command
from whippletree.cli.envoy import render, templates, write
from whippletree.cli.health import HttpHealth
from whippletree.cli.parts import Part
from whippletree.cli.project import TRAIN_PYTHON
from whippletree.cli.restart import RestartPolicy
from whippletree.cli.supervisor import Supervisor
from whippletree.cli.system import Options, choose
from whippletree.client import open_client
from whippletree.errors import WhippletreeError
from whippletree.settings import AccessSettings

PATIENCE = 120.0
"""Seconds for which one request is repeated, and for which rollouts may go on after the last kill."""
MARK = "WHIPPLETREE_CHAOS"
POLICY = RestartPolicy(first_delay=0.1, max_delay=0.5, max_quick_deaths=1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked for."""

    seconds: float
    seed: int
    engine: str
    together: bool
    """Gateway and bridge are one process."""
    agents: int
    calls: int
    pause: float
    """Seconds between two kills, on average."""


@dataclass(slots=True, kw_only=True)
class Chaos:
    """One run."""

    wanted: Wanted
    folder: Path
    layout: plan.Layout
    mark: str
    supervisor: Supervisor
    kills: Counter[str] = field(default_factory=Counter)
    created: list[str] = field(default_factory=list)
    """Rollouts whose creation was acknowledged."""

    @property
    def gateway(self) -> str:
        """host:port."""
        return f"{plan.HOST}:{self.layout.ports.gateway}"

    @property
    def access(self) -> AccessSettings:
        """The key of whoever works here."""
        return identity.access(self.folder)

    @property
    def logs(self) -> Path:
        """Where agents note what was acknowledged."""
        return self.folder / "acknowledged"

    async def start(self) -> None:
        """The whole system."""
        await asyncio.gather(
            self.supervisor.start([self.engine_part()]), self.supervisor.start([plan.gateway(self.layout)])
        )
        await self.register()
        self.supervisor.after_restart("engine", self.register)
        config = plan.envoy_config(self.layout)
        write(render(templates(), plan.envoy_values(self.layout), config), config)
        await self.supervisor.start([*plan.bridges(self.layout), plan.envoy(self.layout)])
        await self.supervisor.start([plan.controller(self.layout)])

    def engine_part(self) -> Part:
        """The fake engine, or SGLang on the CPU."""
        port = self.layout.ports.engine
        if self.wanted.engine == "sglang":
            command = engine_command(self.layout.model_dir, port=port, device="cpu", python=TRAIN_PYTHON)
            return plan.engine(self.layout, command.argv, command.environment)
        argv = (sys.executable, "-m", "benchmarks.engine", "--tokens", "16", "--delay", "0.1", "--port", str(port))
        address = f"{plan.HOST}:{port}"
        ready = HttpHealth(address=address, path="/health")
        return Part(name="engine", command=argv, ready=ready, address=address, port_setting="--engine-port")

    async def register(self) -> None:
        """Tell the gateway where the engine is."""
        async with open_client(self.gateway, self.access, patience=PATIENCE) as client:
            await client.register_model(plan.model(self.layout))

    async def kill(self, until: float) -> None:
        """Kill parts at random until that time."""
        draw, victims = random.Random(self.wanted.seed), sorted(self.supervisor.pids)
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, draw.uniform(0.2, 1.8) * self.wanted.pause))
            name = draw.choice(victims)
            try:
                os.kill(self.supervisor.pids[name], signal.SIGKILL)
            except (ProcessLookupError, KeyError):  # it is being started again
                continue
            self.kills[name] += 1

    async def load(self, until: float) -> None:
        """Keep so many rollouts under way, made one after another by each of these until that time."""
        async with connect(self.gateway, self.access) as channel:
            runs: Any = run_pb2_grpc.RunServiceStub(channel)
            run = run_pb2.CreateRunRequest(run_id="chaos", run=run_pb2.Run(policy="models/policy"))
            await call(lambda: runs.CreateRun(run, timeout=10), patience=PATIENCE)
            stub: Any = rollout_pb2_grpc.RolloutServiceStub(channel)
            await asyncio.gather(*(self.one_after_another(stub, number, until) for number in range(self.wanted.agents)))

    async def one_after_another(self, stub: Any, number: int, until: float) -> None:
        """Create a rollout, wait for its end, again."""
        turn = 0
        while time.monotonic() < until:
            name = f"c{number}-{turn}"
            turn += 1
            create = partial(stub.CreateRollout, self.rollout(name), timeout=10)
            await call(create, patience=PATIENCE)
            self.created.append(name)
            await self.ended(stub, name, until + PATIENCE)

    async def ended(self, stub: Any, name: str, until: float) -> None:
        """Return when a rollout has ended, or at that time."""
        request = rollout_pb2.GetRolloutRequest(name=f"rollouts/{name}")
        while time.monotonic() < until:
            found = await call(lambda: stub.GetRollout(request, timeout=10), patience=PATIENCE)
            if found.rollout.state > rollout_pb2.ROLLOUT_STATE_RUNNING:
                return
            await asyncio.sleep(0.3)

    def rollout(self, name: str) -> rollout_pb2.CreateRolloutRequest:
        """One rollout of our agent."""
        program = rollout_pb2.PythonProgram(
            path=chaos_agent.__file__,
            arguments=[str(self.logs), str(self.wanted.calls)],
            environment={MARK: self.mark},
        )
        runner = rollout_pb2.Runner(python_program=program, max_attempts=20, timeout=Duration(seconds=300))
        content = rollout_pb2.Rollout(run="runs/chaos", runner=runner)
        return rollout_pb2.CreateRolloutRequest(rollout_id=name, rollout=content, request_id=str(uuid.uuid4()))

    async def findings(self) -> chaos_check.Findings:
        """Everything that is wrong while the system still runs."""
        async with open_client(self.gateway, self.access, patience=PATIENCE) as client:
            found = await chaos_check.check(client, self.created, self.logs)
        for _ in range(100):  # agents that were told to stop may take their grace
            if not (left := self.agents()):
                break
            await asyncio.sleep(0.1)
        for pid, command in left.items():
            found.wrong("orphans", f"agent {pid} {command}")
        return found

    def agents(self) -> dict[int, str]:
        """Agents that run."""
        return chaos_check.processes(f"{MARK}={self.mark}")


async def run(wanted: Wanted, folder: Path) -> dict[str, Any]:
    """The whole story; the figures."""
    model_dir = write_tiny_model(folder / "model", maximum_length=4096)
    layout = choose(Options(model_dir=model_dir, run_dir=folder, port=0, together=wanted.together))
    identity.prepare(folder)
    mark = uuid.uuid4().hex
    os.environ[f"{MARK}_PARTS"] = mark  # all parts inherit it
    begin = time.monotonic()
    async with Supervisor(folder, lambda name, what: print(f"{name}: {what}", flush=True), policy=POLICY) as supervisor:
        chaos = Chaos(wanted=wanted, folder=folder, layout=layout, mark=mark, supervisor=supervisor)
        chaos.logs.mkdir()
        await chaos.start()
        until = time.monotonic() + wanted.seconds
        await asyncio.gather(chaos.kill(until), chaos.load(until))
        found = await chaos.findings()
    for pid, command in chaos_check.processes(mark).items():
        found.wrong("orphans", f"process {pid} {command}")
    chaos_check.check_store(folder / "record.db", found)
    return {
        "kills": sum(chaos.kills.values()),
        **dataclasses.asdict(found),
        "killed": dict(chaos.kills),
        "how": {**dataclasses.asdict(wanted), "took_s": round(time.monotonic() - begin, 1)},
    }


def main() -> int:
    """0 = nothing is wrong."""
    parser = argparse.ArgumentParser(description="Kill parts at random under load, then look for what was lost.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["fake", "sglang"], default="fake")
    parser.add_argument("--together", action="store_true", help="gateway and bridge in one process")
    parser.add_argument("--agents", type=int, default=6, help="rollouts under way at once")
    parser.add_argument("--calls", type=int, default=4, help="model calls of each")
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two kills, on average")
    parser.add_argument("--keep", type=Path, default=None, help="folder for records and logs; default a temporary one")
    given = vars(parser.parse_args())
    keep = given.pop("keep")
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            figures = asyncio.run(run(Wanted(**given), folder.resolve()))
        except WhippletreeError as error:
            print(f"the system did not come back: {error}", file=sys.stderr)
            return 1
    print(json.dumps(figures))
    return 0 if not any(figures[name] for name in ("missing", "doubled", "not_terminal", "orphans")) else 1


if __name__ == "__main__":
    sys.exit(main())
