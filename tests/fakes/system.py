"""The whole serving side for tests: a real gateway, bridge and Envoy; only the engine behind them is scripted."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from openai_bridge import server
from openai_bridge.settings import BridgeSettings
from tests.fakes.chat_model import write_chat_model
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import RunningGateway, running_gateway
from tests.fakes.stack import envoy


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


@contextlib.asynccontextmanager
async def system(folder: Path, **changes: object) -> AsyncIterator[System]:
    """Start it, with `models/tiny` registered; `changes` are fields of GatewaySettings."""
    model = write_chat_model(folder / "model")
    async with (
        FakeEngine() as engine,
        running_gateway(folder, **changes) as gateway,
        server.serving(BridgeSettings(gateway=gateway.address, grace=0, insecure_dev=True)) as port,
        envoy(gateway=gateway.address, bridge=f"127.0.0.1:{port}", folder=folder) as url,
    ):
        await gateway.register_model(engine.url, tokenizer_path=str(model))
        yield System(url=url, gateway=gateway, engine=engine)
