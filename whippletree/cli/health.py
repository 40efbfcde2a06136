"""Whether a part is ready, asked the way its users would: gRPC health, or an HTTP path."""

import asyncio
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from whippletree.channel import connect


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcHealth:
    """Ready when grpc.health.v1 at `address` (host:port) says SERVING."""

    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpHealth:
    """Ready when GET `path` at `address` (host:port) answers 200."""

    address: str
    path: str


Check = GrpcHealth | HttpHealth


async def is_ready(check: Check, *, patience: float = 2.0) -> bool:
    """One question; False for every kind of no, and where no answer comes within `patience` seconds."""
    try:
        async with asyncio.timeout(patience):
            return await (_grpc(check) if isinstance(check, GrpcHealth) else _http(check))
    except (TimeoutError, OSError, grpc.aio.AioRpcError):
        return False


async def _grpc(check: GrpcHealth) -> bool:
    async with connect(check.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call,unused-ignore]
        answer = await stub.Check(health_pb2.HealthCheckRequest())  # type: ignore[attr-defined]  # the types lack it
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def _http(check: HttpHealth) -> bool:
    host, _, port = check.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"GET {check.path} HTTP/1.1\r\nHost: {check.address}\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        status = await reader.readline()
    finally:
        writer.close()
    return status.split(b" ")[1:2] == [b"200"]
