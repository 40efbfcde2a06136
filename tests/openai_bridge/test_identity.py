"""A bridge that asks for attempts' tokens: alone with a gateway that holds the keys, and as one process with it."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from whippletree.v1 import bridge_pb2, event_pb2, identity_pb2, rollout_pb2
from whippletree.v1.identity_pb2_grpc import IdentityServiceStub

from openai_bridge.key_set import KeySet
from tests.fakes.bridge import read, request, stub
from tests.fakes.engine import FakeEngine, Reply
from tests.fakes.gateway import RunningGateway
from tests.fakes.keys import bearer, make_keys
from tests.fakes.record import delete
from tests.fakes.system import served
from whippletree import contract
from whippletree.channel import connect
from whippletree.errors import ServiceUnavailableError

BODY = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """A gateway and a bridge with identity; rollouts `a` (train) and `b` run."""

    gateway: RunningGateway
    bridge: str
    engine: FakeEngine
    operator: str
    tokens: Mapping[str, str]

    async def start(self, rollout: str) -> str:
        """Create a rollout of run `r` and start it; its token."""
        await self.gateway.create_rollout(rollout, start=False)
        start = rollout_pb2.StartRolloutRequest(name=f"rollouts/{rollout}", worker="w")
        return (await self.gateway.rollouts.StartRollout(start)).token

    async def chat(
        self, key: str, rollout: str = "", attempt: str = "", mode: str = "", *, retries: int = 0
    ) -> grpc.StatusCode:
        """The code by which a chat completion with this key ends; `retries` = how often its client sent it before."""
        async with connect(self.bridge, bearer(key)) as channel:
            headers = (("x-stainless-retry-count", str(retries)),)
            call: Any = stub(channel).ChatCompletions(request(BODY, rollout, attempt, mode), metadata=headers)
            await read(call)
            code: grpc.StatusCode = await call.code()
            return code

    async def calls(self, rollout: str) -> int:
        """Model calls of a rollout that are recorded."""
        listed = await self.gateway.events.ListEvents(event_pb2.ListEventsRequest(parent=f"rollouts/{rollout}"))
        return sum(event.HasField("model_call") for event in listed.events)


@pytest.fixture(params=[False, True], ids=["separate", "together"])
async def guarded(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Guarded]:
    keys = make_keys(tmp_path / "keys")
    async with served(tmp_path, joint=request.param, keys=keys) as (gateway, bridge, engine):
        await gateway.create_run("r", policy="tiny")
        tokens: dict[str, str] = {}
        made = Guarded(gateway=gateway, bridge=bridge.grpc, engine=engine, operator=keys.operator, tokens=tokens)
        for rollout in ("a", "b"):
            tokens[rollout] = await made.start(rollout)
        yield made


async def test_a_token_alone_names_rollout_attempt_and_mode(guarded: Guarded) -> None:
    assert await guarded.chat(guarded.tokens["a"]) == grpc.StatusCode.OK
    assert (await guarded.calls("a"), await guarded.calls("b")) == (1, 0)


async def test_a_path_that_agrees_with_the_token_is_served(guarded: Guarded) -> None:
    assert await guarded.chat(guarded.tokens["a"], "a", "1", "train") == grpc.StatusCode.OK
    assert await guarded.calls("a") == 1


@pytest.mark.parametrize(
    "path", [("b", "1", "train"), ("a", "2", "train"), ("a", "x", "train"), ("a", "1", "eval"), ("a", "", "")], ids=str
)
async def test_a_path_that_does_not_agree_is_refused(guarded: Guarded, path: tuple[str, str, str]) -> None:
    assert await guarded.chat(guarded.tokens["a"], *path) == grpc.StatusCode.PERMISSION_DENIED
    assert (await guarded.calls("a"), await guarded.calls("b")) == (0, 0)


async def test_nothing_is_served_without_a_token(guarded: Guarded) -> None:
    for key in ("", "whippletree", guarded.tokens["a"][:-4] + "AAAA"):
        assert await guarded.chat(key, "a", "1", "train") == grpc.StatusCode.UNAUTHENTICATED
    assert await guarded.calls("a") == 0


async def test_a_token_that_may_only_reward_calls_no_model(guarded: Guarded) -> None:
    request = identity_pb2.IssueTokenRequest(name="rollouts/a/attempts/1", scopes=[identity_pb2.TOKEN_SCOPE_REWARD])
    evaluator = (await IdentityServiceStub(guarded.gateway.channel).IssueToken(request)).token
    assert await guarded.chat(evaluator) == grpc.StatusCode.PERMISSION_DENIED


async def test_a_token_of_a_deleted_rollout_calls_no_model_for_one_made_anew_with_its_id(guarded: Guarded) -> None:
    await delete(guarded.gateway, "r", force=True)
    await guarded.gateway.create_run("r", policy="tiny")
    new, gate = await guarded.start("a"), asyncio.Event()
    guarded.engine.reply = lambda ids: Reply([5], gates={0: gate})
    running = asyncio.create_task(guarded.chat(new))
    await guarded.engine.wait_received("/generate")
    # Also where the old agent asks what the new one does, and says that it did before.
    async with asyncio.timeout(20):  # it would wait for the gate, if it joined
        assert await guarded.chat(guarded.tokens["a"], retries=1) == grpc.StatusCode.NOT_FOUND
    gate.set()
    assert await running == grpc.StatusCode.OK
    assert await guarded.chat(guarded.tokens["a"], retries=1) == grpc.StatusCode.NOT_FOUND
    assert await guarded.calls("a") == 1


async def test_every_rpc_of_every_dialect_asks(guarded: Guarded) -> None:
    services = [bridge_pb2.DESCRIPTOR.services_by_name[name.rpartition(".")[2]] for name in BRIDGES]
    methods = [f"/{service.full_name}/{method.name}" for service in services for method in service.methods]
    assert methods
    async with connect(guarded.bridge) as channel:
        for method in methods:
            call: Any = channel.unary_stream(method)
            assert await call(b"").code() == grpc.StatusCode.UNAUTHENTICATED, method


BRIDGES = [name for name in contract.public_services() if name.endswith("BridgeService")]


class Source:
    """A gateway's set of keys that a test changes."""

    def __init__(self) -> None:
        self.keys: dict[str, Ed25519PublicKey] | None = None
        self.asked = 0
        self.now = 0.0

    async def read(self) -> Mapping[str, Ed25519PublicKey]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.keys is None:
            raise ServiceUnavailableError("away")
        return dict(self.keys)

    def clock(self) -> float:
        return self.now


async def test_a_set_is_read_once_for_all_who_wait_and_not_again_at_once() -> None:
    source = Source()
    source.keys = {"k": Ed25519PrivateKey.generate().public_key()}
    keys = KeySet(source.read, source.clock)
    await asyncio.gather(*(keys.refresh() for _ in range(5)))
    await keys.refresh()
    assert source.asked == 1
    source.now += 2
    await keys.refresh()
    assert source.asked == 2


async def test_while_the_gateway_is_away_the_last_set_holds_and_none_is_unavailable() -> None:
    source = Source()
    keys = KeySet(source.read, source.clock)
    with pytest.raises(ServiceUnavailableError):
        await keys.refresh()
    source.keys = {"k": Ed25519PrivateKey.generate().public_key()}
    await keys.refresh()
    source.keys, source.now = None, 5.0
    await keys.refresh()
    assert keys.find("k") is not None
