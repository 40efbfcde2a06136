"""A real gateway on a store of its own and a fake engine, ready for calls."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.fakes import postgresql
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import RunningGateway, running_gateway

DATABASES = ("sqlite", "postgresql")
"""Every test that has a folder for a store runs on both; a module that says `DATABASES = ("sqlite",)` on one."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what may open a store on every database."""
    if "tmp_path" in metafunc.fixturenames:
        chosen = getattr(metafunc.module, "DATABASES", DATABASES)
        metafunc.parametrize("database", chosen, indirect=True, scope="function")


@pytest.fixture(scope="session")
def server() -> Iterator[postgresql.Server]:
    """A PostgreSQL server of these tests' own."""
    with postgresql.running() as found:
        yield found


@pytest.fixture(autouse=True)
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Which database the gateways of this test keep their record in."""
    chosen: str = getattr(request, "param", "sqlite")
    monkeypatch.delenv(postgresql.VARIABLE, raising=False)
    if chosen == "postgresql":
        found: postgresql.Server = request.getfixturevalue("server")
        monkeypatch.setenv(postgresql.VARIABLE, str(found.folder))
        yield chosen
        found.clear()
    else:
        yield chosen


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
