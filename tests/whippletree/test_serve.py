"""A real server, asked by raw bytes, and cut at its start."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from whippletree.v1 import rollout_pb2, rollout_pb2_grpc

from whippletree.channel import connect
from whippletree.errors import InvalidFieldError, from_rpc_error
from whippletree.serve import Service, listening

SERVICE = "whippletree.v1.RolloutService"


class Echo(rollout_pb2_grpc.RolloutServiceServicer):
    async def GetRollout(
        self, request: rollout_pb2.GetRolloutRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> rollout_pb2.GetRolloutResponse:
        return rollout_pb2.GetRolloutResponse(rollout=rollout_pb2.Rollout(name=request.name))

    async def WatchRollouts(
        self, request: rollout_pb2.WatchRolloutsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[rollout_pb2.WatchRolloutsResponse]:
        yield rollout_pb2.WatchRolloutsResponse(resume_token=request.resume_token)


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    servicer = Echo()  # type: ignore[abstract]  # the other methods are not asked
    echo = Service(
        full_name=SERVICE,
        register=lambda server: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(servicer, server),
    )
    async with listening([echo], "127.0.0.1:0") as port, connect(f"127.0.0.1:{port}") as opened:
        yield opened


async def test_a_request_that_is_no_message_is_a_wrong_field_without_the_exceptions_text(
    channel: grpc.aio.Channel,
) -> None:
    ask: Any = channel.unary_unary(f"/{SERVICE}/GetRollout", request_serializer=None, response_deserializer=None)
    assert await ask(b"\x0a\x01a")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(b"\x0a\x01\xff")
    known = from_rpc_error(caught.value)
    assert isinstance(known, InvalidFieldError)
    assert "google.protobuf" not in known.message


async def test_so_is_one_that_is_answered_by_a_stream(channel: grpc.aio.Channel) -> None:
    ask: Any = channel.unary_stream(f"/{SERVICE}/WatchRollouts", request_serializer=None, response_deserializer=None)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(b"\x1a\x01\xff").read()
    assert isinstance(from_rpc_error(caught.value), InvalidFieldError)


async def test_large_headers_pass_as_far_as_the_front_door_lets_them(channel: grpc.aio.Channel) -> None:
    stub: rollout_pb2_grpc.RolloutServiceAsyncStub = rollout_pb2_grpc.RolloutServiceStub(channel)
    answer = await stub.GetRollout(rollout_pb2.GetRolloutRequest(name="a"), metadata=(("cookie", "x" * 60_000),))
    assert answer.rollout.name == "a"


async def serve_for_ever() -> None:
    async with listening([], "127.0.0.1:0"):
        await asyncio.Event().wait()


@pytest.mark.parametrize("steps", range(12))
async def test_a_server_that_is_cut_while_it_starts_stops_without_a_word(
    steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    unhandled: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    task = asyncio.create_task(serve_for_ever())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(20):
        await asyncio.sleep(0)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert unhandled == []
