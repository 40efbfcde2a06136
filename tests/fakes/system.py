"""The whole serving side for tests: a real gateway, bridge and Envoy; only the engine behind them is scripted."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gateway_svc import server as gateway_server
from gateway_svc.settings import GatewaySettings
from openai_bridge import server as bridge_server
from openai_bridge.settings import BridgeSettings, StreamSettings
from tests.fakes.chat_model import write_chat_model
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import RunningGateway, running_gateway
from tests.fakes.keys import Keys
from tests.fakes.stack import Bridge, envoy
from whippletree.cli import together


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Everything behind one port."""

    url: str
    gateway: RunningGateway
    engine: FakeEngine

    @property
    def port(self) -> int:
        """The one port."""
        return int(self.url.rpartition(":")[2])

    def openai(self, rollout: str, attempt: int = 1, mode: str = "train") -> str:
        """The base URL of a rollout's harness."""
        return f"{self.url}/proxy/rollout/{rollout}/attempt/{attempt}/mode/{mode}/openai/v1"

    def anthropic(self, rollout: str, attempt: int = 1, mode: str = "train") -> str:
        """The same for Anthropic's dialect; its client appends /v1."""
        return f"{self.url}/proxy/rollout/{rollout}/attempt/{attempt}/mode/{mode}/anthropic"


@contextlib.asynccontextmanager
async def system(
    folder: Path,
    *,
    joint: bool = False,
    keys: Keys | None = None,
    stream: StreamSettings | None = None,
    **changes: Any,
) -> AsyncIterator[System]:
    """Start it, with `models/tiny` registered; `changes` are fields of GatewaySettings.

    `joint` = gateway and bridge are together on one port, as in one process. `keys` = with identity. `stream` is the
    bridge's.
    """
    async with (
        served(folder, joint=joint, keys=keys, stream=stream, **changes) as (gateway, bridge, engine),
        envoy(gateway=gateway.address, bridge=bridge, folder=folder, insecure_dev=keys is None) as url,
    ):
        yield System(url=url, gateway=gateway, engine=engine)


@contextlib.asynccontextmanager
async def served(
    folder: Path,
    *,
    joint: bool,
    keys: Keys | None = None,
    stream: StreamSettings | None = None,
    **changes: Any,
) -> AsyncIterator[tuple[RunningGateway, Bridge, FakeEngine]]:
    """The same without Envoy: gateway, bridge, engine."""
    model = write_chat_model(folder / "model")
    settings = BridgeSettings(grace=0, insecure_dev=keys is None, stream=stream or StreamSettings())
    if keys is not None:
        settings = settings.model_copy(update={"access": keys.access})
    doors: list[Bridge] = []
    start = partial(_joint, settings, doors) if joint else gateway_server.serving
    async with (
        FakeEngine() as engine,
        running_gateway(folder, start=start, keys=keys, **changes) as gateway,
        _bridge(settings, gateway, doors) as bridge,
    ):
        await gateway.register_model(engine.url, tokenizer_path=str(model))
        yield gateway, bridge, engine


@contextlib.asynccontextmanager
async def _joint(bridge: BridgeSettings, doors: list[Bridge], gateway: GatewaySettings) -> AsyncIterator[int]:
    """Adds where its bridge is to `doors`."""
    async with together.serving(together.Settings(gateway=gateway, bridge=bridge)) as ports:
        doors.append(Bridge.at(ports))
        yield ports.grpc


@contextlib.asynccontextmanager
async def _bridge(settings: BridgeSettings, gateway: RunningGateway, joint: list[Bridge]) -> AsyncIterator[Bridge]:
    """The one that is there already, or a new one."""
    if joint:
        yield joint[0]
        return
    async with bridge_server.serving(settings.model_copy(update={"gateway": gateway.address})) as ports:
        yield Bridge.at(ports)
