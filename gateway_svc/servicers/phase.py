"""PhaseService."""

import asyncio
from typing import Any

import grpc
from whippletree.v1 import phase_pb2 as pb
from whippletree.v1.phase_pb2_grpc import PhaseServiceServicer

from gateway_svc import convert, names
from gateway_svc.catalog import Catalog
from gateway_svc.phase import Gates
from gateway_svc.types import Phase, RunId
from whippletree import tasks
from whippletree.errors import SupersededError

Context = grpc.aio.ServicerContext[Any, Any]


class PhaseServicer(PhaseServiceServicer):
    """Phases: durable in the catalog, in force at the gates."""

    def __init__(self, catalog: Catalog, gates: Gates) -> None:
        self._catalog, self._gates = catalog, gates

    async def GetPhase(self, request: pb.GetPhaseRequest, context: Context) -> pb.GetPhaseResponse:
        await self._catalog.refresh()
        run = self._catalog.run(names.run(request.run, "run"))
        key = f"runs/{run.run_id}"
        return pb.GetPhaseResponse(
            phase=convert.PHASES[run.phase],
            in_flight_count=self._gates.in_flight(key),
            held_count=self._gates.held(key),
        )

    async def SetPhase(self, request: pb.SetPhaseRequest, context: Context) -> pb.SetPhaseResponse:
        run_id, phase = names.run(request.run, "run"), convert.phase(request.phase)
        key, interrupt = f"runs/{run_id}", convert.interrupts(request.in_flight)

        def move() -> None:
            if phase == Phase.ROLLOUT:
                self._gates.open(key)
            else:
                self._gates.close(key, interrupt=interrupt)

        once = convert.once("SetPhase", request.request_id, request)
        await self._catalog.refresh()
        await self._catalog.set_phase(run_id, phase, once, move)
        if phase != Phase.ROLLOUT:
            await self._reach(run_id, phase, interrupt)
        return pb.SetPhaseResponse(phase=convert.PHASES[phase])

    async def _reach(self, run_id: RunId, phase: Phase, interrupt: bool) -> None:
        """Return when nothing of the run is in flight anywhere. Raises SupersededError as soon as its phase is another
        one, NotFoundError as soon as it is gone."""
        draining = asyncio.create_task(self._drain(f"runs/{run_id}", interrupt))
        moving = asyncio.create_task(self._gates.until(lambda: self._phase(run_id) != phase))
        try:
            await asyncio.wait((draining, moving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await tasks.end(draining, moving)
        now = self._catalog.run(run_id).phase
        if now != phase or draining.cancelled():  # cancelled = it moved, and moved back while the wait was given up
            raise SupersededError(f"runs/{run_id} is {now} by another call, which {phase} was to precede", phase=now)
        await draining

    async def _drain(self, key: str, interrupt: bool) -> None:
        async with self._gates.empty(key, interrupt=interrupt):
            pass

    def _phase(self, run_id: RunId) -> Phase | None:
        """None = there is no such run."""
        run = self._catalog.runs.get(run_id)
        return run.phase if run else None
