"""Sizes of messages, and what is repeated, at a real server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from whippletree.v1 import rollout_pb2, rollout_pb2_grpc

from whippletree import serve
from whippletree.channel import call, connect
from whippletree.errors import RemoteError
from whippletree.serve import Service, listening

FIVE_MEGABYTES = "x" * 5_000_000
RECEIVED = "grpc.max_receive_message_length"


class Echo(rollout_pb2_grpc.RolloutServiceServicer):
    def __init__(self) -> None:
        self.asked = 0

    async def GetRollout(
        self, request: rollout_pb2.GetRolloutRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> rollout_pb2.GetRolloutResponse:
        self.asked += 1
        return rollout_pb2.GetRolloutResponse(rollout=rollout_pb2.Rollout(name=request.name))


@asynccontextmanager
async def served(echo: Echo) -> AsyncIterator[str]:
    """Its address."""
    service = Service(
        full_name="whippletree.v1.RolloutService",
        register=lambda server: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(echo, server),
    )
    async with listening([service], "127.0.0.1:0") as port:
        yield f"127.0.0.1:{port}"


async def test_messages_larger_than_grpcs_default_pass_both_ways() -> None:
    async with served(Echo()) as address, connect(address) as channel:  # type: ignore[abstract]  # others are not asked
        stub: Any = rollout_pb2_grpc.RolloutServiceStub(channel)
        answer = await stub.GetRollout(rollout_pb2.GetRolloutRequest(name=FIVE_MEGABYTES))
    assert answer.rollout.name == FIVE_MEGABYTES


@pytest.mark.parametrize(
    ("limit", "asked"),
    [("grpc.max_send_message_length", 0), (RECEIVED, 1)],
    ids=["request", "answer"],
)
async def test_what_is_over_the_callers_limit_is_told_and_not_asked_for_again(limit: str, asked: int) -> None:
    echo = Echo()  # type: ignore[abstract]  # the other methods are not asked
    async with served(echo) as address, grpc.aio.insecure_channel(address, options=[(limit, 1_000)]) as channel:
        stub: Any = rollout_pb2_grpc.RolloutServiceStub(channel)
        request = rollout_pb2.GetRolloutRequest(name=FIVE_MEGABYTES)
        with pytest.raises(RemoteError, match="larger than max") as caught:
            await call(lambda: stub.GetRollout(request), patience=5)
    assert caught.value.status == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert echo.asked == asked


async def test_a_request_over_the_servers_limit_is_told_and_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        serve, "OPTIONS", [(name, 1_000 if name == RECEIVED else value) for name, value in serve.OPTIONS]
    )
    echo, tries = Echo(), 0  # type: ignore[abstract]  # the other methods are not asked
    async with served(echo) as address, connect(address) as channel:
        stub: Any = rollout_pb2_grpc.RolloutServiceStub(channel)

        async def ask() -> rollout_pb2.GetRolloutResponse:
            nonlocal tries
            tries += 1
            answer: rollout_pb2.GetRolloutResponse = await stub.GetRollout(
                rollout_pb2.GetRolloutRequest(name=FIVE_MEGABYTES)
            )
            return answer

        with pytest.raises(RemoteError) as caught:
            await call(ask, patience=5)
    assert caught.value.status == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (tries, echo.asked) == (1, 0)
