"""A real gateway for other services' tests: on a store of its own, in this process or in another.

In: a folder for the store. Out: an address. Example::

    async with running_gateway(tmp_path) as gateway, FakeEngine() as engine:
        await gateway.register_model(engine.url)
        await gateway.create_run("r")
        await gateway.create_rollout("r", "a")
        stub = RolloutServiceStub(gateway.channel)
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.struct_pb2 import Struct
from whippletree.v1 import event_pb2, inference_pb2, model_call_pb2, model_pb2, rollout_pb2, run_pb2
from whippletree.v1.event_pb2_grpc import EventServiceStub
from whippletree.v1.inference_pb2_grpc import InferenceServiceStub
from whippletree.v1.model_pb2_grpc import ModelServiceStub
from whippletree.v1.phase_pb2_grpc import PhaseServiceStub
from whippletree.v1.rollout_pb2_grpc import RolloutServiceStub
from whippletree.v1.run_pb2_grpc import RunServiceStub

from gateway_svc.server import serving
from gateway_svc.settings import GatewaySettings, IdentitySettings, StoreSettings
from tests.fakes import postgresql
from tests.fakes.keys import Keys
from whippletree.channel import connect
from whippletree.errors import WhippletreeError, from_rpc_error
from whippletree.settings import AccessSettings

if TYPE_CHECKING:  # these stubs exist for the type checker alone
    from whippletree.v1.event_pb2_grpc import EventServiceAsyncStub
    from whippletree.v1.inference_pb2_grpc import InferenceServiceAsyncStub
    from whippletree.v1.model_pb2_grpc import ModelServiceAsyncStub
    from whippletree.v1.phase_pb2_grpc import PhaseServiceAsyncStub
    from whippletree.v1.rollout_pb2_grpc import RolloutServiceAsyncStub
    from whippletree.v1.run_pb2_grpc import RunServiceAsyncStub


INSECURE = ("--insecure_dev", "true")
"""Arguments of a service in tests that are not about identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGateway:
    """A gateway that serves, with a channel to it and short ways to what tests need first."""

    address: str
    channel: grpc.aio.Channel

    @property
    def rollouts(self) -> "RolloutServiceAsyncStub":
        """Stub of RolloutService."""
        return RolloutServiceStub(self.channel)

    @property
    def events(self) -> "EventServiceAsyncStub":
        """Stub of EventService."""
        return EventServiceStub(self.channel)

    @property
    def inference(self) -> "InferenceServiceAsyncStub":
        """Stub of InferenceService."""
        return InferenceServiceStub(self.channel)

    @property
    def models(self) -> "ModelServiceAsyncStub":
        """Stub of ModelService."""
        return ModelServiceStub(self.channel)

    @property
    def runs(self) -> "RunServiceAsyncStub":
        """Stub of RunService."""
        return RunServiceStub(self.channel)

    @property
    def phases(self) -> "PhaseServiceAsyncStub":
        """Stub of PhaseService."""
        return PhaseServiceStub(self.channel)

    async def register_model(
        self,
        *engines: str,
        name: str = "tiny",
        context_length: int = 2048,
        vocabulary_size: int = 1024,
        tokenizer_path: str = "",
        weight_version: str = "",
        weights_path: str = "",
    ) -> model_pb2.Model:
        """Register `models/{name}` with these engines."""
        model = model_pb2.Model(
            name=f"models/{name}",
            engines=[model_pb2.Engine(address=engine) for engine in engines],
            context_length=context_length,
            vocabulary_size=vocabulary_size,
            tokenizer_path=tokenizer_path,
            weight_version=weight_version,
            weights_path=weights_path,
        )
        return (await self.models.RegisterModel(model_pb2.RegisterModelRequest(model=model))).model

    async def create_run(self, run_id: str = "r", policy: str = "tiny", max_hold_s: int = 600) -> run_pb2.Run:
        """Create `runs/{run_id}`."""
        run = run_pb2.Run(policy=f"models/{policy}")
        run.max_hold.FromSeconds(max_hold_s)
        return (await self.runs.CreateRun(run_pb2.CreateRunRequest(run_id=run_id, run=run))).run

    async def create_rollout(
        self,
        rollout_id: str,
        run_id: str = "r",
        *,
        group_id: str = "",
        start: bool = True,
        runner: rollout_pb2.Runner | None = None,
        question: str = "1 + 1",
    ) -> rollout_pb2.Rollout:
        """Create `rollouts/{rollout_id}` and start its first attempt."""
        rollout = rollout_pb2.Rollout(run=f"runs/{run_id}", group_id=group_id, input=Struct(), runner=runner)
        rollout.input.update({"question": question})
        request = rollout_pb2.CreateRolloutRequest(rollout_id=rollout_id, rollout=rollout)
        made = (await self.rollouts.CreateRollout(request)).rollout
        if start:
            begin = rollout_pb2.StartRolloutRequest(name=made.name, worker="test")
            return (await self.rollouts.StartRollout(begin)).rollout
        return made

    async def generate(
        self, rollout_id: str, prompt: Sequence[int], *, attempt: int = 1, request_id: str = "", max_tokens: int = 16
    ) -> inference_pb2.GenerateResponse:
        """One call in train mode."""
        request = inference_pb2.GenerateRequest(
            rollout=f"rollouts/{rollout_id}",
            attempt=attempt,
            prompt_token_ids=packed(prompt),
            sampling=model_call_pb2.SamplingParams(max_tokens=max_tokens),
            dialect="openai.chat",
            request_id=request_id,
        )
        return await self.inference.Generate(request)

    async def list_events(
        self, rollout_id: str, view: event_pb2.EventView.ValueType = event_pb2.EVENT_VIEW_FULL
    ) -> Sequence[event_pb2.Event]:
        """The first 1,000 events of a rollout."""
        request = event_pb2.ListEventsRequest(parent=f"rollouts/{rollout_id}", view=view, page_size=1000)
        return (await self.events.ListEvents(request)).events


def packed(ids: Sequence[int]) -> bytes:
    """Token ids as the wire has them."""
    return b"".join(token.to_bytes(4, "little", signed=True) for token in ids)


def record_of(folder: Path) -> Path | str:
    """Where a test's gateway keeps its record: a file in this folder, or the folder's database on the tests' server."""
    if server := os.environ.get(postgresql.VARIABLE):
        return postgresql.Server(folder=Path(server)).database(str(folder))
    return folder / "record.db"


@contextlib.asynccontextmanager
async def running_gateway(
    folder: Path,
    *,
    start: Callable[[GatewaySettings], contextlib.AbstractAsyncContextManager[int]] = serving,
    keys: Keys | None = None,
    access: AccessSettings | None = None,
    **changes: Any,
) -> AsyncIterator[RunningGateway]:
    """A gateway in this process, on a store in `folder`; `changes` are fields of GatewaySettings.

    `start` serves it, alone or together with a bridge, and yields its port. With `keys` it asks for them, and the
    channel carries the operator's unless `access` says otherwise.
    At the end the gateway stops before the channel is closed, so that calls in flight see how a stop looks.
    """
    where = record_of(folder)
    store = StoreSettings.model_validate({"path" if isinstance(where, Path) else "url": where, "synchronous": "NORMAL"})
    settings = GatewaySettings(store=store, notice=0, grace=0.5, watch_quiet=0.2, insecure_dev=True)
    settings = settings.model_copy(update=changes)
    if keys is not None:
        identity = IdentitySettings(folder=keys.folder)
        settings = settings.model_copy(update={"insecure_dev": False, "identity": identity})
        access = access or keys.access
    async with contextlib.AsyncExitStack() as after, start(settings) as port:
        channel = await after.enter_async_context(connect(f"127.0.0.1:{port}", access))
        yield RunningGateway(address=f"127.0.0.1:{port}", channel=channel)


@contextlib.asynccontextmanager
async def gateway_process(
    folder: Path, *arguments: str
) -> AsyncIterator[tuple[RunningGateway, asyncio.subprocess.Process]]:
    """A gateway in a process of its own, killed at the end if it still runs."""
    where = record_of(folder)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway_svc",
        "--store.path" if isinstance(where, Path) else "--store.url",
        str(where),
        "--log_level",
        "WARNING",
        *INSECURE,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},  # faster
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert line.startswith("listening on "), line
        address = line.split()[-1]
        async with connect(address) as channel:
            yield RunningGateway(address=address, channel=channel), process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]  # asyncio leaves the pipe to the garbage collector


@contextlib.asynccontextmanager
async def refused(kind: type[WhippletreeError]) -> AsyncIterator[list[WhippletreeError]]:
    """Expect this error from the other side; the list holds it after the block."""
    caught: list[WhippletreeError] = []
    try:
        yield caught
    except grpc.aio.AioRpcError as error:
        found = from_rpc_error(error)
        assert isinstance(found, kind), f"{type(found).__name__}: {found}"
        caught.append(found)
    else:
        raise AssertionError(f"{kind.__name__} was expected")
