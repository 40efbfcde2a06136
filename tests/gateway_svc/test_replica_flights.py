"""Repeats and retries that reach another replica than the one that runs their generation: they wait for it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from gateway_svc.flights import Flight
from gateway_svc.postgresql import conninfo
from gateway_svc.shared_flights import SharedFlights
from gateway_svc.types import Ask, Mode, Once, RolloutId, Sampling
from tests.fakes.engine import FakeEngine, Reply
from tests.fakes.gateway import RunningGateway, gateway_process, record_of, running_gateway
from tests.gateway_svc.test_retries import ask, delivered, leave, recorded

DATABASES = ("postgresql",)
Pair = tuple[RunningGateway, RunningGateway]
GATE = """CREATE FUNCTION pass_gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NEW; END $$;
CREATE TRIGGER gate BEFORE UPDATE OF joins ON flights FOR EACH ROW WHEN (NEW.joins IS NOT NULL)
EXECUTE FUNCTION pass_gate()"""
"""Whoever has found what to wait for stops before it says so."""
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.fixture
async def replicas(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[Pair]:
    """Two gateways on one record with the running rollout `a`; what nobody waits for is ended at once."""
    async with running_gateway(tmp_path, retry_grace=0.0) as one, running_gateway(tmp_path, retry_grace=0.0) as two:
        await prepare(one, engine)
        yield one, two


async def prepare(gateway: RunningGateway, engine: FakeEngine) -> None:
    await gateway.create_run("r")
    await gateway.register_model(engine.url)
    await gateway.create_rollout("a")


def gated(engine: FakeEngine) -> asyncio.Event:
    """Responses wait for this."""
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    return gate


async def rows(folder: Path, condition: str, count: int = 1) -> None:
    """Return when so many rows of flights meet a condition: nobody tells when a replica waits."""
    where = conninfo(str(record_of(folder)))
    async with (
        asyncio.timeout(60),
        await psycopg.AsyncConnection.connect(where, autocommit=True) as connection,
    ):
        while True:
            found = await (await connection.execute(f"SELECT count(*) FROM flights WHERE {condition}")).fetchone()
            if found == (count,):
                return
            await asyncio.sleep(0.01)


async def test_the_same_request_at_both_is_sampled_once(replicas: Pair, engine: FakeEngine, tmp_path: Path) -> None:
    gate = gated(engine)
    both = [asyncio.create_task(ask(gateway, "r1")) for gateway in replicas]
    await rows(tmp_path, "joins IS NOT NULL")
    gate.set()
    first, second = await asyncio.gather(*both)
    assert first == second
    assert await recorded(replicas[0]) == [first]
    assert len(engine.requests("/generate")) == 1
    await rows(tmp_path, "true", 0)


async def test_a_retry_at_the_other_replica_joins(replicas: Pair, engine: FakeEngine, tmp_path: Path) -> None:
    one, two = replicas
    gate = gated(engine)
    first = asyncio.create_task(ask(one, "r1"))
    await engine.wait_received("/generate")
    retry = asyncio.create_task(ask(two, "r2", retry=True))
    await rows(tmp_path, "joins IS NOT NULL")
    gate.set()
    assert await retry == await first
    assert len(engine.requests("/generate")) == 1
    assert await ask(one, "r2", retry=True) == await first, "its request is known to all"


async def test_a_sibling_at_the_other_replica_is_sampled_meanwhile(replicas: Pair, engine: FakeEngine) -> None:
    gate = gated(engine)
    both = [asyncio.create_task(ask(gateway, f"r{number}")) for number, gateway in enumerate(replicas)]
    await engine.wait_received("/generate", 2)
    gate.set()
    assert len(set(await asyncio.gather(*both))) == 2


async def test_what_the_other_replica_waits_for_goes_on_when_its_own_callers_are_gone(
    replicas: Pair, engine: FakeEngine, tmp_path: Path
) -> None:
    one, two = replicas
    gate = gated(engine)
    first = asyncio.create_task(ask(one, "r1"))
    await engine.wait_received("/generate")
    retry = asyncio.create_task(ask(two, "r2", retry=True))
    await rows(tmp_path, "joins IS NOT NULL")
    await leave(first)
    await rows(tmp_path, "abandoned")
    gate.set()
    (call,) = {await retry}
    assert not engine.requests("/abort_request")
    await delivered(two, call)
    assert await recorded(one) == [call]


async def test_a_lost_generation_is_joined_by_an_equal_request_that_says_nothing(
    tmp_path: Path, engine: FakeEngine
) -> None:
    async with running_gateway(tmp_path, retry_grace=60.0) as one, running_gateway(tmp_path) as two:
        await prepare(one, engine)
        gate = gated(engine)
        first = asyncio.create_task(ask(one, "r1"))
        await engine.wait_received("/generate")
        await leave(first)
        await rows(tmp_path, "abandoned")
        again = asyncio.create_task(ask(two, "r2"))
        await rows(tmp_path, "joins IS NOT NULL")
        gate.set()
        assert [await again] == await recorded(one)
        assert len(engine.requests("/generate")) == 1


async def test_when_nobody_waits_at_any_replica_the_generation_is_aborted(
    replicas: Pair, engine: FakeEngine, tmp_path: Path
) -> None:
    one, two = replicas
    gated(engine)
    first = asyncio.create_task(ask(one, "r1"))
    await engine.wait_received("/generate")
    retry = asyncio.create_task(ask(two, "r2", retry=True))
    await rows(tmp_path, "joins IS NOT NULL")
    await leave(first)
    await leave(retry)
    await engine.wait_received("/abort_request")
    await rows(tmp_path, "true", 0)
    assert await recorded(one) == []


async def test_a_killed_replicas_generation_is_taken_over_by_who_waits_for_it(
    tmp_path: Path, engine: FakeEngine
) -> None:
    async with running_gateway(tmp_path) as one, gateway_process(tmp_path) as (two, process):
        await prepare(one, engine)
        gate = gated(engine)
        cut = asyncio.create_task(ask(two, "r1"))
        await engine.wait_received("/generate")
        repeats = [asyncio.create_task(ask(one, "r1")), asyncio.create_task(ask(one, "r2", retry=True))]
        await rows(tmp_path, "joins IS NOT NULL")
        process.kill()
        await asyncio.wait([cut])
        await engine.wait_received("/generate", 2)
        gate.set()
        assert len({*await asyncio.gather(*repeats)}) == 1
        assert len(await recorded(one)) == 1


def repeated() -> Flight:
    """A flight of one and the same request."""
    ask = Ask(
        rollout_id=RolloutId("a"),
        attempt=1,
        mode=Mode.TRAIN,
        model="tiny",
        prompt=b"",
        sampling=Sampling(),
        asked_sampling="",
        dialect="",
        choice_index=0,
        once=Once(request_id="r", method="Generate", digest=b""),
    )
    return Flight(ask=ask, requests={})


async def test_nobody_waits_for_one_that_is_about_to_wait(tmp_path: Path) -> None:
    """A chain of waits can become a cycle: its first link ends, and its second finds the third to wait for."""

    async def fly(shared: SharedFlights) -> None:
        async with shared.claimed(repeated()):
            pass

    async def waiting(count: int) -> None:
        while await (await direct.execute(WAITING)).fetchone() != (count,):
            await asyncio.sleep(0.01)

    where = conninfo(str(record_of(tmp_path)))
    async with (
        asyncio.timeout(60),
        await psycopg.AsyncConnection.connect(where, autocommit=True) as direct,
        SharedFlights(where) as first,
        SharedFlights(where) as second,
        SharedFlights(where) as third,
        asyncio.TaskGroup() as others,
        first.claimed(repeated()),
    ):
        await direct.execute(GATE)
        await direct.execute("SELECT pg_advisory_lock(7)")
        others.create_task(fly(second))
        await waiting(1)
        others.create_task(fly(third))
        await waiting(2)
        await direct.execute("SELECT pg_advisory_unlock(7)")
        await rows(tmp_path, "joins IS NOT NULL", 2)
        await rows(tmp_path, "joins IN (SELECT flight FROM flights WHERE joins IS NULL)", 2)
