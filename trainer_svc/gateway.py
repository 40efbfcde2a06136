"""The driver's client of the gateway. Every call has a deadline and waits out a gateway that is away (`patience`).

Raises WhippletreeError; ServiceUnavailableError when patience ends.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import TypeVar

import grpc
from whippletree.v1 import (
    event_pb2,
    event_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    rollout_pb2,
    rollout_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
)

from trainer_svc import convert
from trainer_svc.config import AgentSection
from trainer_svc.types import Record, RolloutId, RolloutSpec, RunId, Status
from whippletree.channel import call, connect
from whippletree.errors import RolloutEndedError, WrongStateError, from_rpc_error
from whippletree.settings import AccessSettings
from whippletree.tracing import outgoing

log = logging.getLogger(__name__)

DEADLINE = 60.0
"""Seconds for one ordinary call."""
UPDATE_DEADLINE = 900.0
"""Seconds for engines to finish what is in flight and load new weights."""
BATCH = 250
"""Rollouts in one BatchCreateRollouts or ExportEvents."""

T = TypeVar("T")


class Gateway:
    """One run's view of the gateway."""

    def __init__(self, channel: grpc.aio.Channel, *, patience: float) -> None:
        self._patience = patience
        self._rollouts = rollout_pb2_grpc.RolloutServiceStub(channel)
        self._events = event_pb2_grpc.EventServiceStub(channel)
        self._runs = run_pb2_grpc.RunServiceStub(channel)
        self._models = model_pb2_grpc.ModelServiceStub(channel)

    async def context_length(self, model: str) -> int:
        """Prompt + response tokens at most of a registered model. Raises NotFoundError."""
        request = model_pb2.GetModelRequest(name=f"models/{model}")
        answer = await call(lambda: self._models.GetModel(request, timeout=DEADLINE), patience=self._patience)
        return answer.model.context_length

    async def create_run(self, run: RunId, policy: str) -> None:
        """Make the run known; doing so again is fine."""
        request = run_pb2.CreateRunRequest(run_id=run, run=convert.run(policy), request_id=str(uuid.uuid4()))
        await call(lambda: self._runs.CreateRun(request, timeout=DEADLINE), patience=self._patience)

    async def create_rollouts(self, run: RunId, specs: Sequence[RolloutSpec], agent: AgentSection) -> list[Status]:
        """Ask for rollouts; those that exist are left alone. Where each stands, in the order given."""
        statuses: list[Status] = []
        for part in batched(specs, BATCH):
            request = rollout_pb2.BatchCreateRolloutsRequest(
                requests=[convert.create_request(run, spec, agent) for spec in part], request_id=str(uuid.uuid4())
            )
            answer = await call(
                lambda request=request: self._rollouts.BatchCreateRollouts(request, timeout=DEADLINE),  # type: ignore[misc]
                patience=self._patience,
            )
            statuses += [convert.status(item.rollout) for item in answer.responses]
        return statuses

    async def cancel(self, rollout_id: RolloutId, reason: str, *, patience: float) -> None:
        """Cancel a rollout; one that has ended stays as it is."""
        request = rollout_pb2.CancelRolloutRequest(
            name=f"rollouts/{rollout_id}", message=reason, request_id=str(uuid.uuid4())
        )
        try:
            await call(lambda: self._rollouts.CancelRollout(request, timeout=DEADLINE), patience=patience)
        except (WrongStateError, RolloutEndedError):
            log.debug("%s had ended", rollout_id)

    async def watch(self, run: RunId) -> AsyncIterator[Status]:
        """Every rollout of the run as it is, then every change, without end; at least once each.

        Goes on from where it was when the gateway comes back, or from a new snapshot.
        """
        now = asyncio.get_running_loop().time
        token, last = "", now()
        while True:
            request = rollout_pb2.WatchRolloutsRequest(run=f"runs/{run}", resume_token=token)
            try:
                async for message in self._rollouts.WatchRollouts(request):
                    token, last = message.resume_token, now()
                    if message.WhichOneof("record") == "rollout":
                        yield convert.status(message.rollout)
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.OUT_OF_RANGE:
                    token = ""
                elif error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
                    log.warning("the watch was read too slowly and goes on from where it was")
                elif error.code() != grpc.StatusCode.UNAVAILABLE or now() - last > self._patience:
                    raise from_rpc_error(error) from error
            await asyncio.sleep(0.2)  # the server ended the stream or is away

    async def records(self, statuses: Sequence[Status], model: str) -> list[Record]:
        """What the rollouts' last attempts wrote, in the order given; calls of `model` alone."""
        found: list[Record] = []
        for part in batched(statuses, BATCH):
            events = await call(lambda part=part: self._export(part), patience=self._patience)  # type: ignore[misc]
            found += [
                convert.record(item.rollout_id, item.attempt, events.get(item.rollout_id, ()), model) for item in part
            ]
        return found

    async def _export(self, part: Sequence[Status]) -> dict[str, list[event_pb2.Event]]:
        request = event_pb2.ExportEventsRequest(parents=[f"rollouts/{item.rollout_id}" for item in part])
        events: dict[str, list[event_pb2.Event]] = {}
        async for message in self._events.ExportEvents(request, timeout=DEADLINE):
            events.setdefault(convert.identifier(message.rollout), []).append(message.event)
        return events

    async def publish(self, model: str, version: str, path: Path) -> None:
        """Have every engine of the model load a directory; returns when generations use it."""
        request = model_pb2.PublishWeightsRequest(
            name=f"models/{model}", weight_version=version, weights_path=str(path), request_id=str(uuid.uuid4())
        )
        metadata = outgoing()
        await call(
            lambda: self._models.PublishWeights(request, timeout=UPDATE_DEADLINE, metadata=metadata),
            patience=self._patience,
        )


@asynccontextmanager
async def connected(address: str, access: AccessSettings | None = None, *, patience: float) -> AsyncIterator[Gateway]:
    """A client of the gateway at host:port."""
    async with connect(address, access) as channel:
        yield Gateway(channel, patience=patience)


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Items in lists of at most `size`."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
