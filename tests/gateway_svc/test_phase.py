"""Holding and draining: the gates as values of one loop, and the service that sets them."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from whippletree.v1 import phase_pb2, run_pb2

from gateway_svc.catalog import Catalog
from gateway_svc.phase import Gates
from gateway_svc.servicers.phase import PhaseServicer
from gateway_svc.types import Micros, ModelName, Phase, Run, RunId, Sampling
from tests.fakes.engine import FakeEngine, Reply
from tests.fakes.gateway import RunningGateway, refused, running_gateway
from tests.fakes.record import delete
from whippletree.errors import HeldTooLongError, NotFoundError, ShuttingDownError, SupersededError

KEYS = ("runs/r", "models/m")
ROLLOUT, DRAINING, UPDATING = phase_pb2.PHASE_ROLLOUT, phase_pb2.PHASE_DRAINING, phase_pb2.PHASE_UPDATING


class Clock:
    """Seconds as the test says."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


async def test_an_open_gate_admits_at_once_and_counts() -> None:
    gates = Gates(Clock())
    async with gates.admitted(KEYS, 1.0) as admission:
        assert (admission.held, gates.in_flight("runs/r"), gates.in_flight("models/m")) == (0.0, 1, 1)
    assert gates.in_flight("runs/r") == 0


async def test_a_closed_gate_holds_until_all_its_keys_are_open() -> None:
    clock = Clock()
    gates = Gates(clock)
    gates.close("runs/r")
    gates.close("models/m")

    async def pass_through() -> float:
        async with gates.admitted(KEYS, 60.0) as admission:
            return admission.held

    waiting = asyncio.create_task(pass_through())
    await asyncio.sleep(0)
    gates.open("runs/r")
    await asyncio.sleep(0)
    assert (gates.held("runs/r"), gates.in_flight("runs/r")) == (1, 0)
    clock.seconds = 2.5
    gates.open("models/m")
    assert await waiting == 2.5
    assert gates.held("runs/r") == 0


async def test_a_gate_closed_again_before_its_waiters_ran_holds_them() -> None:
    gates = Gates(Clock())
    gates.close("runs/r")
    waiting = asyncio.create_task(gates.admitted(KEYS, 60.0).__aenter__())
    await asyncio.sleep(0)
    gates.open("runs/r")
    gates.close("runs/r")
    await asyncio.sleep(0.01)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (gates.held("runs/r"), gates.in_flight("runs/r")) == (0, 0)


async def test_drained_waits_for_what_is_in_flight() -> None:
    gates = Gates(Clock())
    async with gates.admitted(KEYS, 1.0):
        gates.close("runs/r")
        draining = asyncio.create_task(gates.drained("runs/r"))
        await asyncio.sleep(0)
        assert not draining.done()
    await draining


async def test_a_hold_longer_than_max_hold_says_when_to_come_again() -> None:
    gates = Gates(Clock())
    gates.close("runs/r")
    with pytest.raises(HeldTooLongError) as caught:
        async with gates.admitted(KEYS, 0.01):
            raise AssertionError("admitted")
    assert caught.value.retry_after
    assert gates.held("runs/r") == 0


async def test_a_stop_ends_all_holds() -> None:
    gates = Gates(Clock())
    gates.close("runs/r")
    waiting = asyncio.create_task(gates.admitted(KEYS, 60.0).__aenter__())
    await asyncio.sleep(0)
    gates.stop()
    with pytest.raises(ShuttingDownError):
        await waiting


async def set_phase(gateway: RunningGateway, phase: phase_pb2.Phase.ValueType, run: str = "runs/r") -> None:
    answer = await gateway.phases.SetPhase(phase_pb2.SetPhaseRequest(run=run, phase=phase))
    assert answer.phase == phase


async def get_phase(gateway: RunningGateway) -> phase_pb2.GetPhaseResponse:
    return await gateway.phases.GetPhase(phase_pb2.GetPhaseRequest(run="runs/r"))


async def test_draining_answers_when_nothing_is_in_flight(ready: RunningGateway, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    old = asyncio.create_task(ready.generate("a", [1]))
    await engine.wait_received("/generate")
    draining = asyncio.create_task(set_phase(ready, phase_pb2.PHASE_DRAINING))
    while (await get_phase(ready)).phase != phase_pb2.PHASE_DRAINING:
        pass
    assert (await get_phase(ready)).in_flight_count == 1
    assert not draining.done()
    gate.set()
    await draining
    await old
    assert (await get_phase(ready)).in_flight_count == 0


@pytest.mark.parametrize("first", [DRAINING, UPDATING], ids=["draining", "updating"])
@pytest.mark.parametrize("second", [ROLLOUT, DRAINING, UPDATING], ids=["rollout", "draining", "updating"])
async def test_a_later_phase_ends_the_wait_for_an_earlier_one(
    ready: RunningGateway, engine: FakeEngine, first: phase_pb2.Phase.ValueType, second: phase_pb2.Phase.ValueType
) -> None:
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    old = asyncio.create_task(ready.generate("a", [1]))
    await engine.wait_received("/generate")
    earlier = asyncio.create_task(set_phase(ready, first))
    while (await get_phase(ready)).phase != first:
        pass
    later = asyncio.create_task(set_phase(ready, second))
    if second != first:
        async with asyncio.timeout(20), refused(SupersededError) as caught:  # the generation still runs
            await earlier
        assert caught[0].metadata["phase"] == phase_pb2.Phase.Name(second).removeprefix("PHASE_").lower()
    if second != ROLLOUT:
        while (await get_phase(ready)).phase != second:
            pass
        assert not later.done()
        gate.set()
    await later
    assert (await get_phase(ready)).phase == second
    if second == first:
        await earlier
    gate.set()
    await old


async def test_a_repeat_whose_phase_holds_no_more_says_so_and_moves_nothing(ready: RunningGateway) -> None:
    request = phase_pb2.SetPhaseRequest(run="runs/r", phase=UPDATING, request_id=str(uuid.uuid4()))
    await ready.phases.SetPhase(request)
    await ready.phases.SetPhase(request)
    await set_phase(ready, ROLLOUT)
    async with refused(SupersededError):
        await ready.phases.SetPhase(request)
    assert (await get_phase(ready)).phase == ROLLOUT


class Slow(Gates):
    """Is never empty, and takes its time to give up."""

    def __init__(self) -> None:
        super().__init__(Clock())
        self.waiting, self.giving_up, self.go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def empty(self, key: str, *, interrupt: bool = False) -> AsyncIterator[None]:
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.giving_up.set()
            await self.go.wait()
        yield


class Phases:
    """What of a catalog is needed here."""

    def __init__(self, gates: Gates) -> None:
        self._gates: Gates = gates
        self.runs: dict[RunId, Run] = {}
        self.to(Phase.ROLLOUT)

    def to(self, phase: Phase) -> None:
        """Another call moves the run."""
        nothing = Sampling()
        self.runs[RunId("r")] = Run(
            run_id=RunId("r"),
            policy=ModelName("m"),
            train_sampling=nothing,
            eval_sampling=nothing,
            max_hold=Micros(0),
            phase=phase,
        )
        self._gates.move(self.runs[RunId("r")])

    def run(self, run_id: RunId) -> Run:
        return self.runs[run_id]

    async def refresh(self) -> None:
        """There is no other replica."""

    async def set_phase(self, run_id: RunId, phase: Phase, once: Any, then: Any) -> None:
        self.to(phase)


async def test_a_phase_that_came_back_while_its_wait_was_given_up_is_another_calls() -> None:
    gates = Slow()
    phases = Phases(gates)
    servicer = PhaseServicer(cast(Catalog, phases), gates)
    request = phase_pb2.SetPhaseRequest(run="runs/r", phase=DRAINING)
    earlier = asyncio.create_task(servicer.SetPhase(request, cast(Any, None)))
    await gates.waiting.wait()
    phases.to(Phase.ROLLOUT)
    await gates.giving_up.wait()
    phases.to(Phase.DRAINING)
    gates.go.set()
    with pytest.raises(SupersededError):
        await earlier


async def test_a_run_that_is_deleted_ends_the_wait_for_its_phase(ready: RunningGateway, engine: FakeEngine) -> None:
    engine.reply = lambda ids: Reply([5], gates={0: asyncio.Event()})
    old = asyncio.create_task(ready.generate("a", [1]))
    await engine.wait_received("/generate")
    draining = asyncio.create_task(set_phase(ready, DRAINING))
    while (await get_phase(ready)).phase != DRAINING:
        pass
    await delete(ready, "r", force=True)
    async with asyncio.timeout(20), refused(NotFoundError):
        await draining
    old.cancel()
    await asyncio.wait([old])


async def test_the_phase_of_one_run_does_not_hold_another(ready: RunningGateway, engine: FakeEngine) -> None:
    await ready.create_run("other")
    await ready.create_rollout("b", run_id="other")
    await set_phase(ready, phase_pb2.PHASE_UPDATING)
    await ready.generate("b", [1])
    held = asyncio.create_task(ready.generate("a", [2]))
    while not (await get_phase(ready)).held_count:
        pass
    assert [one.body["input_ids"] for one in engine.requests("/generate")] == [[1]]
    await set_phase(ready, phase_pb2.PHASE_ROLLOUT)
    assert (await held).call.hold_duration.ToMicroseconds() > 0


async def test_a_phase_holds_over_a_restart(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.register_model(engine.url)
        await gateway.create_run("r", max_hold_s=0)
        await gateway.create_rollout("a")
        await set_phase(gateway, phase_pb2.PHASE_UPDATING)
    async with running_gateway(tmp_path) as gateway:
        assert (await get_phase(gateway)).phase == phase_pb2.PHASE_UPDATING
        async with refused(HeldTooLongError) as caught:
            await gateway.generate("a", [1])
        assert caught[0].retry_after
        await set_phase(gateway, phase_pb2.PHASE_ROLLOUT)
        await gateway.generate("a", [1])
    assert len(engine.requests("/generate")) == 1


async def test_the_phase_shows_in_the_run_and_an_unknown_run_has_none(gateway: RunningGateway) -> None:
    await set_phase(gateway, phase_pb2.PHASE_UPDATING)
    run = (await gateway.runs.GetRun(run_pb2.GetRunRequest(name="runs/r"))).run
    assert run.phase == phase_pb2.PHASE_UPDATING
    async with refused(NotFoundError):
        await set_phase(gateway, phase_pb2.PHASE_ROLLOUT, run="runs/none")
