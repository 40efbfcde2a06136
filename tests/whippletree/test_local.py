"""A stub within one process means what it means over the wire: deadline, cancellation, errors, metadata."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from whippletree.v1 import rollout_pb2, run_pb2_grpc
from whippletree.v1.rollout_pb2_grpc import RolloutServiceServicer, RolloutServiceStub
from whippletree.v1.rollout_pb2_grpc import add_RolloutServiceServicer_to_server as add

from whippletree.channel import call
from whippletree.errors import DeadlineError, InternalError, NotFoundError, ShuttingDownError
from whippletree.local import LocalChannel
from whippletree.serve import Service

Handler = Callable[[Any, Any], Awaitable[Any]]


def stub(handler: Handler) -> Any:
    """A stub whose GetRollout is this handler."""

    class Rollouts(RolloutServiceServicer):
        async def GetRollout(self, request: Any, context: Any) -> Any:
            return await handler(request, context)

    made = Rollouts()  # type: ignore[abstract]  # only what is asked
    service = Service(full_name="whippletree.v1.RolloutService", register=lambda server: add(made, server))
    return RolloutServiceStub(LocalChannel.to([service]))


REQUEST = rollout_pb2.GetRolloutRequest(name="rollouts/r")


async def test_messages_are_handed_over_and_not_copied() -> None:
    response, seen = rollout_pb2.GetRolloutResponse(), []

    async def handler(request: Any, context: Any) -> Any:
        seen.append((request, context.invocation_metadata()))
        return response

    assert await stub(handler).GetRollout(REQUEST, metadata=(("whippletree-rollout", "r"),), timeout=10) is response
    assert seen[0][0] is REQUEST
    assert seen[0][1] == (("whippletree-rollout", "r"),)


async def test_an_error_comes_back_as_it_was_raised() -> None:
    error = NotFoundError("no such", name="rollouts/r")

    async def handler(request: Any, context: Any) -> Any:
        raise error

    with pytest.raises(NotFoundError) as caught:
        await stub(handler).GetRollout(REQUEST)
    assert caught.value is error


async def test_what_is_unforeseen_is_told_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(request: Any, context: Any) -> Any:
        raise ZeroDivisionError("secret")

    with pytest.raises(InternalError, match=r"^internal error$"):
        await stub(handler).GetRollout(REQUEST)
    assert "unforeseen failure in /whippletree.v1.RolloutService/GetRollout" in caplog.text


async def test_a_deadline_cancels_the_servicer() -> None:
    cancelled = asyncio.Event()

    async def handler(request: Any, context: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(DeadlineError):
        await stub(handler).GetRollout(REQUEST, timeout=0.01)
    assert cancelled.is_set()


async def test_a_time_out_of_the_servicers_own_is_not_the_deadline() -> None:
    async def handler(request: Any, context: Any) -> Any:
        raise TimeoutError

    with pytest.raises(InternalError):
        await stub(handler).GetRollout(REQUEST, timeout=60)


async def test_a_caller_that_is_cancelled_cancels_the_servicer() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(request: Any, context: Any) -> Any:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        cancelled.set()
        raise asyncio.CancelledError

    calling = asyncio.create_task(stub(handler).GetRollout(REQUEST, timeout=60))
    await begun.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert cancelled.is_set()


async def test_an_unavailable_servicer_is_asked_again() -> None:
    tries: list[int] = []

    async def handler(request: Any, context: Any) -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise ShuttingDownError("not yet")
        return rollout_pb2.GetRolloutResponse()

    made = stub(handler)
    await call(lambda: made.GetRollout(REQUEST), patience=60)
    assert len(tries) == 3


def test_a_service_that_is_not_there_is_found_out_at_the_start() -> None:
    with pytest.raises(KeyError):
        run_pb2_grpc.RunServiceStub(LocalChannel.to([]))


async def test_a_stream_is_refused() -> None:
    async def handler(request: Any, context: Any) -> Any:
        return rollout_pb2.GetRolloutResponse()

    with pytest.raises(NotImplementedError):
        stub(handler).WatchRollouts(rollout_pb2.WatchRolloutsRequest())
