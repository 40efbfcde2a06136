"""The real Envoy with the product's template, in front of a bridge process and a scripted gateway, for a whole session.

Tests set `front.policy.reply`; `front` is as new for every test, the processes are not.
"""

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from openai_bridge import server
from openai_bridge.settings import BridgeSettings
from tests.fakes.bridge import says_hi
from tests.fakes.chat_model import write_chat_model
from tests.fakes.policy import FakePolicy, serving
from tests.fakes.stack import Bridge, Envoy, envoy, running_envoy, service
from tests.fakes.system import System, system

ROLLOUT = "/proxy/rollout/r1/attempt/1/mode/train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Everything behind one port."""

    url: str
    policy: FakePolicy
    gateway: str

    @property
    def openai(self) -> str:
        """A harness's base URL."""
        return f"{self.url}{ROLLOUT}/openai/v1"

    @property
    def anthropic(self) -> str:
        """The base URL of a harness that speaks Anthropic's dialect; its client appends /v1."""
        return f"{self.url}{ROLLOUT}/anthropic"

    @property
    def port(self) -> int:
        """The one port."""
        return int(self.url.rpartition(":")[2])


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def running_front(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    """Started once."""
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))  # Envoy inherits it
    folder: Path = tmp_path_factory.mktemp("front")
    policy = FakePolicy(tokenizer_path=write_chat_model(folder / "model"), reply=says_hi)
    async with (
        serving(policy) as gateway,
        service("openai_bridge", "--gateway", gateway, "--stream.keep_alive", "0.2") as bridge,
        envoy(gateway=gateway, bridge=bridge.bridge, folder=folder) as url,
    ):
        yield Front(url=url, policy=policy, gateway=gateway)


@pytest_asyncio.fixture(loop_scope="session")
async def front(running_front: Front) -> AsyncIterator[Front]:
    """With an empty record and a policy that says hi."""
    policy = running_front.policy
    policy.reply = says_hi
    policy.changed = asyncio.Condition()
    for kept in (policy.asked, policy.delivered, policy.cancelled):
        kept.clear()
    yield running_front
    policy.reply = says_hi


@pytest_asyncio.fixture(loop_scope="session")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """Plain HTTP/1.1."""
    async with httpx.AsyncClient(timeout=60) as made:
        yield made


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=[False, True], ids=["separate", "together"])
async def whole(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[System]:
    """A real gateway behind Envoy, started once; a test makes its own runs and rollouts."""
    async with system(tmp_path_factory.mktemp("whole"), joint=request.param) as running:
        yield running


@pytest.fixture
async def policy(tmp_path: Path) -> FakePolicy:
    """One that says hi."""
    return FakePolicy(tokenizer_path=write_chat_model(tmp_path / "model"), reply=says_hi)


@asynccontextmanager
async def limited(policy: FakePolicy, folder: Path, *limits: tuple[str, str]) -> AsyncIterator[Envoy]:
    """Envoy with other limits."""
    async with (
        serving(policy) as gateway,
        server.serving(BridgeSettings(gateway=gateway, grace=0, insecure_dev=True)) as ports,
        running_envoy(gateway=gateway, bridge=Bridge.at(ports), folder=folder, replacing=limits) as running,
    ):
        yield running
