"""Callers that share one generation: the last one that goes away ends it, not the first."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gateway_svc import rollouts
from gateway_svc.catalog import Catalog
from gateway_svc.engines.clients import connected
from gateway_svc.engines.leased import Leased
from gateway_svc.engines.pool import Limits, Pool
from gateway_svc.generate import Generator
from gateway_svc.phase import Gates
from gateway_svc.recorder import Recorder
from gateway_svc.sample import Sampler
from gateway_svc.settings import EngineSettings
from gateway_svc.store import Store
from gateway_svc.types import (
    Ask,
    Engine,
    Micros,
    Mode,
    Model,
    ModelCall,
    ModelName,
    Once,
    Repeat,
    Role,
    RolloutId,
    RolloutSpec,
    Run,
    RunId,
    Sampling,
    Split,
)
from tests.fakes.engine import FakeEngine, Reply
from whippletree.tokens import pack_ids, unpack_ids
from whippletree.tracing import Tracing

ASK = Ask(
    rollout_id=RolloutId("a"),
    attempt=1,
    mode=Mode.TRAIN,
    model="",
    prompt=pack_ids([1, 2]),
    sampling=Sampling(max_tokens=4),
    asked_sampling="",
    dialect="",
    choice_index=0,
    once=Once(request_id="k", method="Generate", digest=b"1"),
)


def zero() -> Micros:
    return Micros(0)


def repeated(request_id: str) -> Ask:
    """The same body again, by another request, with no word of a retry."""
    once = Once(request_id=request_id, method="Generate", digest=request_id.encode())
    return replace(ASK, once=once, repeat=Repeat(turn=b"turn", key="", is_retry=False))


@pytest.fixture
async def generator(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[Generator]:
    """A generator with the running rollout `a`; what is left ends at once."""
    async with generating(tmp_path, engine, grace=0) as made:
        yield made


@asynccontextmanager
async def generating(tmp_path: Path, engine: FakeEngine, *, grace: float) -> AsyncIterator[Generator]:
    """A generator with the running rollout `a`."""
    store = await Store.open(tmp_path / "record.db", synchronous="NORMAL", capacity=10, readers=1, clock=zero)
    catalog = await Catalog.load(store)
    name = ModelName("m")
    unset = Sampling()
    run = Run(run_id=RunId("r"), policy=name, train_sampling=unset, eval_sampling=unset, max_hold=Micros(1))
    model = Model(
        name=name,
        role=Role.POLICY,
        engines=(Engine(address=engine.url),),
        weight_version="",
        weights_path="",
        tokenizer_path="",
        context_length=100,
        vocabulary_size=100,
    )
    spec = RolloutSpec(
        rollout_id=ASK.rollout_id,
        run_id=run.run_id,
        group_id="",
        split=Split.TRAIN,
        input=b"",
        runner=b"",
        metadata=b"",
        max_attempts=1,
    )
    await catalog.create_run(run, None)
    await catalog.register(model, None)
    await store.write(lambda tx: rollouts.create(tx, [spec], None))
    await store.write(lambda tx: rollouts.start(tx, ASK.rollout_id, "", None))
    ids = itertools.count()
    gates, limits = Gates(lambda: 0.0), Limits(max_in_flight=0, max_waiting=0, spread=1.5)
    async with connected(EngineSettings().patterns, generate_timeout=60, control_timeout=60) as clients:
        recorder = Recorder(CollectorRegistry(), Tracing())
        pool = Pool(clients, Leased(store, lambda: 0.0), gates, limits, zero)
        made = Generator(
            store=store,
            catalog=catalog,
            gates=gates,
            sampler=Sampler(catalog, gates, pool, clients, recorder, tries=1, pause=0),
            clock=zero,
            new_id=lambda: f"c{next(ids)}",
            retry_grace=grace,
            recorder=recorder,
        )
        yield made
        await made.close()
    await store.close()


async def test_the_first_of_two_callers_may_go_away(generator: Generator, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    first, second = (asyncio.create_task(generator.generate(ASK)) for _ in range(2))
    await engine.wait_received("/generate")
    first.cancel()
    await asyncio.wait([first])
    gate.set()
    call = (await second).payload
    assert isinstance(call, ModelCall)
    assert unpack_ids(call.response).tolist() == [5]
    assert [one.path for one in engine.received] == ["/generate"]


async def test_when_all_callers_are_gone_the_generation_is_aborted_and_a_new_one_may_begin(
    generator: Generator, engine: FakeEngine
) -> None:
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    callers = [asyncio.create_task(generator.generate(ASK)) for _ in range(2)]
    await engine.wait_received("/generate")
    for caller in callers:
        caller.cancel()
    await asyncio.wait(callers)
    again = asyncio.create_task(generator.generate(ASK))
    await engine.wait_received("/generate", 2)
    await engine.wait_received("/abort_request")
    gate.set()
    call = (await again).payload
    assert isinstance(call, ModelCall)
    assert call.call_id != engine.requests("/abort_request")[0].body["rid"]


async def test_the_same_body_joins_what_its_caller_left_and_is_a_sibling_of_what_is_waited_for(
    tmp_path: Path, engine: FakeEngine
) -> None:
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    async with generating(tmp_path, engine, grace=60) as generator:
        left = asyncio.create_task(generator.generate(repeated("r1")))
        await engine.wait_received("/generate")
        left.cancel()
        await asyncio.wait([left])
        again = asyncio.create_task(generator.generate(repeated("r2")))
        await asyncio.sleep(0)  # it has joined
        sibling = asyncio.create_task(generator.generate(repeated("r3")))
        await engine.wait_received("/generate", 2)
        gate.set()
        assert (await again).sequence != (await sibling).sequence
        assert (await generator.generate(repeated("r2"))) == await again
    assert [one.path for one in engine.received] == ["/generate"] * 2


async def test_a_response_that_came_while_nobody_waited_is_kept_for_the_retry(
    tmp_path: Path, engine: FakeEngine
) -> None:
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    async with generating(tmp_path, engine, grace=60) as generator:
        left = asyncio.create_task(generator.generate(repeated("r1")))
        sent = (await engine.wait_received("/generate"))[0]
        left.cancel()
        await asyncio.wait([left])
        gate.set()
        await engine.wait_finished(sent.body["rid"])
        call = (await generator.generate(repeated("r2"))).payload
        assert isinstance(call, ModelCall)
        assert call.call_id == sent.body["rid"]
    assert len(engine.received) == 1
