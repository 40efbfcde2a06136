"""The clients of all kinds of engines, over one pool of connections."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from gateway_svc.engines import allowed
from gateway_svc.engines.api import Api
from gateway_svc.engines.client import Clients
from gateway_svc.engines.http import Client
from gateway_svc.engines.sglang import Sglang
from gateway_svc.engines.vllm import Vllm
from gateway_svc.types import EngineKind


@asynccontextmanager
async def connected(
    patterns: Sequence[allowed.Pattern], *, generate_timeout: float, control_timeout: float
) -> AsyncIterator[Clients]:
    """By kind, while the block runs; `patterns` say where they may connect to."""
    client = Client(partial(allowed.reachable, patterns=patterns))
    api = Api(client, generate_timeout=generate_timeout, control_timeout=control_timeout)
    try:
        yield {EngineKind.SGLANG: Sglang(api), EngineKind.VLLM: Vllm(api)}
    finally:
        client.close()
