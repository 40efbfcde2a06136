"""A bridge in front of a scripted gateway, both with real gRPC servers."""

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.api.httpbody_pb2 import HttpBody
from whippletree.v1 import bridge_pb2, bridge_pb2_grpc

from openai_bridge import server
from openai_bridge.settings import BridgeSettings
from tests.fakes.chat_model import END, tokenizer, write_chat_model
from tests.fakes.policy import FakePolicy, Request, Sampled, services_of, serving
from whippletree.channel import connect
from whippletree.local import LocalChannel
from whippletree.serve import listening
from whippletree.telemetry import observing

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
TEXT = tokenizer()


def sampled(text: str, **more: Any) -> Sampled:
    """A response of these words and an end token."""
    return Sampled(ids=TEXT.encode(text + END, add_special_tokens=False).ids, **more)


async def says_hi(_: Request) -> Sampled:
    """The reply of a policy that a test does not care about."""
    return sampled("Hi 😀")


@dataclass(slots=True, kw_only=True)
class Bridge:
    """A running bridge and the gateway that it asks."""

    policy: FakePolicy
    gateway: str
    """Address."""
    address: str
    stub: "bridge_pb2_grpc.OpenAIBridgeServiceAsyncStub"

    def call(
        self,
        body: bytes,
        *,
        rollout: str = "r1",
        attempt: str = "1",
        mode: str = "train",
        metadata: Sequence[tuple[str, str]] = (),
    ) -> Any:
        """A chat completion, direct over gRPC; HTTP headers arrive as `metadata`."""
        return self.stub.ChatCompletions(request(body, rollout, attempt, mode), metadata=tuple(metadata))


@asynccontextmanager
async def bridge(
    folder: Path,
    reply: Callable[[Request], Coroutine[Any, Any, Sampled]] = says_hi,
    *,
    local: bool = False,
    **settings: Any,
) -> AsyncIterator[Bridge]:
    """A bridge of this process with a script and settings; `folder` takes the model.

    `local` = it reaches the gateway's servicers as where both are one process.
    """
    policy = FakePolicy(tokenizer_path=write_chat_model(folder / "model"), reply=reply)
    async with (
        serving(policy) as gateway,
        _served(
            BridgeSettings(gateway=gateway, insecure_dev=True, **({"notice": 0} | settings)),
            policy if local else None,
        ) as port,
        connect(f"127.0.0.1:{port}") as channel,
    ):
        yield Bridge(policy=policy, gateway=gateway, address=f"127.0.0.1:{port}", stub=stub(channel))


@asynccontextmanager
async def _served(settings: BridgeSettings, policy: FakePolicy | None) -> AsyncIterator[int]:
    if policy is None:
        async with server.serving(settings) as ports:
            yield ports.grpc
        return
    async with (
        observing("bridge", settings.metrics, settings.telemetry) as telemetry,
        server.offering(settings, LocalChannel.to(services_of(policy)), telemetry) as offer,
        listening(offer.services, settings.listen, drain=offer.drain, layers=[telemetry.layer]) as port,
    ):
        yield port


def request(
    body: bytes, rollout: str = "r1", attempt: str = "1", mode: str = "train"
) -> bridge_pb2.ChatCompletionsRequest:
    """A chat completion as a message."""
    return bridge_pb2.ChatCompletionsRequest(
        rollout=rollout, attempt=attempt, mode=mode, body=HttpBody(content_type="application/json", data=body)
    )


def stub(channel: grpc.aio.Channel) -> "bridge_pb2_grpc.OpenAIBridgeServiceAsyncStub":
    """The bridge's own rpcs, without Envoy."""
    made: Any = bridge_pb2_grpc.OpenAIBridgeServiceStub(channel)
    return made  # type: ignore[no-any-return]


async def read(call: Any) -> tuple[int, bytes]:
    """(HTTP status, body) of a call that was made direct over gRPC."""
    data = b""
    try:
        while (part := await call.read()) is not grpc.aio.EOF:
            data += part.data
    except grpc.aio.AioRpcError:
        pass
    metadata = dict(await call.initial_metadata())
    return int(metadata.get("x-http-code", 200)), data
