"""A server has one accept pending, however many methods it has, and knows them all."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody
from grpc_health.v1 import health_pb2, health_pb2_grpc
from whippletree.v1 import bridge_pb2, bridge_pb2_grpc

from whippletree.channel import connect
from whippletree.serve import Service, listening


class Servicer(bridge_pb2_grpc.OpenAIBridgeServiceServicer):
    async def ChatCompletions(self, request: Any, context: Any) -> AsyncIterator[HttpBody]:
        yield HttpBody(data=b"here")

    async def ListOpenAIModels(self, request: Any, context: Any) -> AsyncIterator[HttpBody]:
        yield HttpBody(data=b"there")

    async def GetOpenAIModel(self, request: Any, context: Any) -> AsyncIterator[HttpBody]:
        await context.abort(grpc.StatusCode.NOT_FOUND, "nowhere")
        yield HttpBody()


SERVICE = Service(
    full_name="whippletree.v1.OpenAIBridgeService",
    register=lambda server: bridge_pb2_grpc.add_OpenAIBridgeServiceServicer_to_server(Servicer(), server),
)


async def test_every_method_is_found_by_its_name_and_what_is_none_is_unimplemented() -> None:
    async with listening([SERVICE], "127.0.0.1:0") as port, connect(f"127.0.0.1:{port}") as channel:
        stub: Any = bridge_pb2_grpc.OpenAIBridgeServiceStub(channel)
        assert (await stub.ChatCompletions(bridge_pb2.ChatCompletionsRequest()).read()).data == b"here"
        assert (await stub.ListOpenAIModels(bridge_pb2.ListOpenAIModelsRequest()).read()).data == b"there"
        health: Any = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call,unused-ignore]
        answer = await health.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        none: Any = channel.unary_unary("/whippletree.v1.OpenAIBridgeService/None")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await none(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_number_of_methods_adds_no_pending_accepts() -> None:
    async with listening([SERVICE], "127.0.0.1:0"):
        await asyncio.sleep(0)
        assert not [task for task in asyncio.all_tasks() if "registered" in repr(task.get_coro())]
