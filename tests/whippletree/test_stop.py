"""A real server that stops while calls run."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from whippletree.v1 import rollout_pb2, rollout_pb2_grpc

from whippletree.channel import connect
from whippletree.errors import ShuttingDownError, from_rpc_error
from whippletree.serve import Service, listening
from whippletree.stop import REFUSED, Signals

LONG = 3600.0
"""Seconds that no test waits for."""
ASK = rollout_pb2.GetRolloutRequest(name="rollouts/a")
WATCH = rollout_pb2.WatchRolloutsRequest()
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Waiting(rollout_pb2_grpc.RolloutServiceServicer):
    """Answers once it may; a watch sends one message before."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.asked = asyncio.Semaphore(0)

    async def GetRollout(self, request: Any, context: Any) -> rollout_pb2.GetRolloutResponse:
        self.asked.release()
        await self.may.wait()
        return rollout_pb2.GetRolloutResponse(rollout=rollout_pb2.Rollout(name=request.name))

    async def WatchRollouts(self, request: Any, context: Any) -> AsyncIterator[rollout_pb2.WatchRolloutsResponse]:
        yield rollout_pb2.WatchRolloutsResponse(resume_token="1")
        self.asked.release()
        while request.resume_token == "much":
            yield rollout_pb2.WatchRolloutsResponse(resume_token="2" * 1_000_000)
        await self.may.wait()


@dataclass(slots=True, kw_only=True)
class Server:
    """One that can be stopped."""

    channel: grpc.aio.Channel
    servicer: Waiting
    refusing: asyncio.Event
    """Set once it takes no new calls."""
    signals: Signals
    stack: contextlib.AsyncExitStack
    stub: Any = field(init=False)

    def __post_init__(self) -> None:
        self.stub = rollout_pb2_grpc.RolloutServiceStub(self.channel)

    async def get(self) -> "asyncio.Task[Any]":
        """A call that waits."""

        async def call() -> Any:
            return await self.stub.GetRollout(ASK)

        task = asyncio.create_task(call())
        await self.servicer.asked.acquire()
        return task

    async def health(self) -> int:
        """What health says now."""
        stub: Any = health_pb2_grpc.HealthStub(self.channel)
        return int((await stub.Check(health_pb2.HealthCheckRequest())).status)

    async def stop(self) -> "asyncio.Task[None]":
        """Begin to stop; returns once health says so."""
        stopping = asyncio.create_task(self.stack.aclose())
        while await self.health() == SERVING:
            pass
        return stopping


@contextlib.asynccontextmanager
async def serving(**stop: Any) -> AsyncIterator[Server]:
    servicer = Waiting()  # type: ignore[abstract]  # the other methods are not asked
    refusing, signals = asyncio.Event(), Signals()
    service = Service(
        full_name="whippletree.v1.RolloutService",
        register=lambda server: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(servicer, server),
    )

    async def drain() -> None:
        refusing.set()

    async with contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(
            listening([service], "127.0.0.1:0", drain=drain, haste=signals.haste, **stop)
        )
        async with connect(f"127.0.0.1:{port}") as channel:
            try:
                yield Server(channel=channel, servicer=servicer, refusing=refusing, signals=signals, stack=stack)
            finally:
                signals.haste.set()


@contextlib.asynccontextmanager
async def cut() -> AsyncIterator[list[grpc.aio.AioRpcError]]:
    """Expect SHUTTING_DOWN."""
    caught: list[grpc.aio.AioRpcError] = []
    with pytest.raises(grpc.aio.AioRpcError) as error:
        yield caught
    assert isinstance(from_rpc_error(error.value), ShuttingDownError)
    caught.append(error.value)


def mark(error: grpc.aio.AioRpcError) -> list[tuple[str, str | bytes]]:
    return list(error.trailing_metadata())


async def to_the_end(watch: Any) -> None:
    while await watch.read() is not grpc.aio.EOF:
        pass


async def test_calls_are_taken_while_envoy_is_given_notice() -> None:
    async with serving(notice=LONG, grace=LONG) as server:
        stopping = await server.stop()
        late = await server.get()
        assert await server.health() == NOT_SERVING
        assert not server.refusing.is_set()
        server.servicer.may.set()
        assert (await late).rollout.name == ASK.name
        server.signals.haste.set()
        await stopping


async def test_calls_in_flight_end_and_new_ones_are_refused_with_a_mark() -> None:
    async with serving(grace=LONG) as server:
        early = await server.get()
        stopping = await server.stop()
        await server.refusing.wait()
        async with cut() as caught:
            await server.stub.GetRollout(ASK)
        assert REFUSED in mark(caught[0])
        assert await server.health() == NOT_SERVING
        server.servicer.may.set()
        assert (await early).rollout.name == ASK.name
        await stopping


@pytest.mark.parametrize("hasty", [True, False], ids=["second signal", "grace is over"])
async def test_what_is_left_ends_with_a_status_that_says_so(hasty: bool) -> None:
    async with serving(grace=LONG if hasty else 0.05) as server:
        unary, watch = await server.get(), server.stub.WatchRollouts(WATCH)
        assert (await watch.read()).resume_token == "1"
        stopping = asyncio.create_task(server.stack.aclose())
        if hasty:
            server.signals.haste.set()
        async with cut() as caught:
            await unary
        assert REFUSED not in mark(caught[0]), "it had begun"
        async with cut():
            await watch.read()
        await stopping


async def test_a_service_may_end_its_answers_in_its_own_words() -> None:
    ends: list[asyncio.Event] = []
    async with serving(grace=0, cut=lambda: ends.pop().set()) as server:
        ends.append(server.servicer.may)
        answered = await server.get()
        await server.stack.aclose()
        assert (await answered).rollout.name == ASK.name


async def test_a_stream_that_is_cut_while_it_writes_ends_with_a_status_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("whippletree.stop.WRITING", LONG)
    monkeypatch.setattr("whippletree.serve.WRITING", LONG)
    async with serving(grace=0) as server:
        watch = server.stub.WatchRollouts(rollout_pb2.WatchRolloutsRequest(resume_token="much"))
        await server.servicer.asked.acquire()
        stopping = asyncio.create_task(server.stack.aclose())
        await server.refusing.wait()
        for _ in range(100):  # the cut, while a message waits for room on the wire
            await asyncio.sleep(0)
        async with cut():
            await to_the_end(watch)
        await stopping


async def test_a_watcher_that_reads_nothing_does_not_see_a_clean_end() -> None:
    async with serving(grace=0) as server:
        watch = server.stub.WatchRollouts(rollout_pb2.WatchRolloutsRequest(resume_token="much"))
        await server.servicer.asked.acquire()
        await server.stack.aclose()  # while a message waits for room on the wire
        with pytest.raises(grpc.aio.AioRpcError):
            await to_the_end(watch)


def test_the_first_signal_asks_for_a_stop_and_the_second_for_haste() -> None:
    signals = Signals()
    signals.came()
    assert (signals.stop.is_set(), signals.haste.is_set()) == (True, False)
    signals.came()
    assert signals.haste.is_set()
