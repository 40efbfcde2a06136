"""A full disk: a clear error, nothing acknowledged lost, reads go on, and recovery without a restart."""

import asyncio
import ctypes
import os
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from whippletree.v1 import event_pb2, rollout_pb2

from gateway_svc.room import WRITE
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import RunningGateway, gateway_process, refused
from tests.fakes.record import log
from whippletree.errors import StoreFullError, from_rpc_error

DATABASES = ("sqlite",)
LINE = "x" * 20_000


async def health(gateway: RunningGateway, name: str) -> str:
    stub = health_pb2_grpc.HealthStub(gateway.channel)  # type: ignore[no-untyped-call,unused-ignore]
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))  # type: ignore[attr-defined]
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


async def until(gateway: RunningGateway, status: str) -> None:
    async with asyncio.timeout(20):
        while await health(gateway, WRITE) != status:
            await asyncio.sleep(0.02)


@asynccontextmanager
async def begun(folder: Path, engine: FakeEngine) -> AsyncIterator[tuple[RunningGateway, asyncio.subprocess.Process]]:
    async with gateway_process(folder, "--store.probe_pause", "0.05") as (gateway, process):
        await gateway.create_run("r")
        await gateway.register_model(engine.url)
        await gateway.create_rollout("a")
        await until(gateway, "SERVING")
        yield gateway, process


async def fill(gateway: RunningGateway, acknowledged: set[int]) -> None:
    """Write with many writers until all are told that the store is full."""

    async def write() -> None:
        for _ in range(2000):
            try:
                acknowledged.add(await log(gateway, "a", LINE))
            except grpc.aio.AioRpcError as error:
                found = from_rpc_error(error)
                if isinstance(found, StoreFullError) and found.retry_after == 2.0:
                    return
                raise
        raise AssertionError("the store never filled up")

    await asyncio.gather(*(write() for _ in range(8)))


async def stored(gateway: RunningGateway) -> list[int]:
    found: list[int] = []
    token = ""
    while True:
        request = event_pb2.ListEventsRequest(parent="rollouts/a", page_size=100, page_token=token)
        answer = await gateway.events.ListEvents(request)
        found += [event.sequence for event in answer.events]
        if not (token := answer.next_page_token):
            return found


async def called(gateway: RunningGateway) -> int:
    """Sequence of a new call."""
    await gateway.generate("a", [1])
    return (await stored(gateway))[-1]


async def check_reads_alone(gateway: RunningGateway, engine: FakeEngine, acknowledged: set[int]) -> None:
    """What a gateway without room still does."""
    await until(gateway, "NOT_SERVING")
    assert await health(gateway, "") == "SERVING", "reads go on"
    assert (await gateway.rollouts.GetRollout(rollout_pb2.GetRolloutRequest(name="rollouts/a"))).rollout.attempt == 1
    async with refused(StoreFullError):
        await gateway.generate("a", [1])
    assert not engine.requests("/generate"), "nothing is sampled that could not be recorded"
    assert set(await stored(gateway)) == acknowledged, "nothing is lost, and nothing is kept that was refused"


async def check_writes_again(gateway: RunningGateway, acknowledged: set[int]) -> None:
    """What it does when there is room, by itself."""
    await until(gateway, "SERVING")
    acknowledged.add(await log(gateway, "a", LINE))
    acknowledged.add(await called(gateway))
    found = await stored(gateway)
    assert found == sorted(acknowledged)
    assert found == list(range(found[0], found[0] + len(found))), "a refused write leaves no gap"


async def test_a_file_that_may_not_grow_makes_the_gateway_read_only_until_it_may(
    tmp_path: Path, engine: FakeEngine
) -> None:
    acknowledged: set[int] = set()
    async with begun(tmp_path, engine) as (gateway, process):
        limits = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (3 << 20, limits[1]))
        await fill(gateway, acknowledged)
        await check_reads_alone(gateway, engine, acknowledged)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)
        await check_writes_again(gateway, acknowledged)
    async with gateway_process(tmp_path) as (gateway, _):
        assert set(await stored(gateway)) == acknowledged


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of this size; the test is skipped where it may not be mounted."""
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, f"size={size}".encode()):
        pytest.skip(f"cannot mount: {os.strerror(ctypes.get_errno())}")
    try:
        yield folder
    finally:
        libc.umount2(str(folder).encode(), 2)  # MNT_DETACH


async def test_a_full_disk_makes_the_gateway_read_only_until_there_is_room(tmp_path: Path, engine: FakeEngine) -> None:
    acknowledged: set[int] = set()
    with small_disk(tmp_path / "disk", "6m") as disk:
        (disk / "ballast").write_bytes(bytes(3 << 20))
        async with begun(disk, engine) as (gateway, _):
            await fill(gateway, acknowledged)
            await check_reads_alone(gateway, engine, acknowledged)
            (disk / "ballast").unlink()
            await check_writes_again(gateway, acknowledged)
        async with gateway_process(disk) as (gateway, process):
            assert set(await stored(gateway)) == acknowledged
            process.kill()
