"""A PostgreSQL that says nothing: nobody waits for it for ever."""

import asyncio
import signal
from pathlib import Path

import grpc

from gateway_svc.store import Store
from tests.fakes import postgresql
from tests.fakes.engine import FakeEngine, Reply
from tests.fakes.gateway import gateway_process
from tests.gateway_svc.test_retries import ask
from tests.gateway_svc.test_store import names, opened, put
from whippletree.errors import ShuttingDownError, from_rpc_error

DATABASES = ("postgresql",)
ENDED = 45.0
"""Seconds for a stop that takes less than 10; one that waits for the server's silence to end takes twice this."""


async def test_a_gateway_stops_although_its_store_is_silent(
    tmp_path: Path, server: postgresql.Server, engine: FakeEngine
) -> None:
    async with gateway_process(tmp_path, "--notice", "0", "--grace", "1") as (gateway, process):
        await gateway.create_run("r")
        await gateway.register_model(engine.url)
        await gateway.create_rollout("a")
        gate = asyncio.Event()
        engine.reply = lambda ids: Reply([5], gates={0: gate})
        calls = [asyncio.create_task(ask(gateway, f"r{number}")) for number in range(3)]
        await engine.wait_received("/generate", 3)
        with server.silent():
            gate.set()  # each is about to be recorded
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(ENDED):
                assert await process.wait() == 0
        for call in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(call, grpc.aio.AioRpcError)
            assert isinstance(from_rpc_error(call), ShuttingDownError)


async def test_what_a_silent_store_did_not_commit_fails_and_what_it_did_stays(
    tmp_path: Path, server: postgresql.Server
) -> None:
    store = await opened(tmp_path)
    assert await store.write(put("acknowledged")) == "acknowledged"
    with server.silent():
        writes = [asyncio.create_task(store.write(put(f"w{number}"))) for number in range(3)]
        reads = [asyncio.create_task(store.read(names)) for _ in range(5)]
        await asyncio.sleep(0)
        await within(store)
        for found in await asyncio.gather(*writes, *reads, return_exceptions=True):
            assert isinstance(found, ShuttingDownError)
    again = await opened(tmp_path)
    assert "acknowledged" in await again.read(names)
    await again.close()


async def within(store: Store) -> None:
    async with asyncio.timeout(ENDED):
        await store.close()
