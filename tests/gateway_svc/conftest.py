"""A real gateway on a store of its own and a fake engine, ready for calls."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import RunningGateway, running_gateway


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    """A fake engine."""
    async with FakeEngine() as running:
        yield running


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """An empty gateway with the run `r` of the policy `tiny`, which is not registered."""
    async with running_gateway(tmp_path) as running:
        await running.create_run("r")
        yield running


@pytest.fixture
async def ready(gateway: RunningGateway, engine: FakeEngine) -> RunningGateway:
    """The gateway with `models/tiny` on the engine and the rollout `a` with its first attempt under way."""
    await gateway.register_model(engine.url)
    await gateway.create_rollout("a")
    return gateway
