"""A gateway that asks for keys: who may do what, and that tokens and keys change while it serves."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from whippletree.v1 import (
    attempt_pb2,
    event_pb2,
    identity_pb2,
    inference_pb2,
    model_pb2,
    phase_pb2,
    rollout_pb2,
    run_pb2,
)
from whippletree.v1.event_pb2_grpc import EventServiceStub
from whippletree.v1.identity_pb2_grpc import IdentityServiceStub
from whippletree.v1.rollout_pb2_grpc import RolloutServiceStub

from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import RunningGateway, refused, running_gateway
from tests.fakes.keys import Keys, bearer, make_keys
from tests.fakes.record import delete
from whippletree import contract
from whippletree.channel import connect
from whippletree.errors import NotFoundError, PermissionDeniedError, WrongStateError
from whippletree.identity.claims import Scope
from whippletree.identity.folder import KeyFolder, add_operator, add_signing_key, read_operators, revoke_operator
from whippletree.identity.tokens import TokenVerifier

OK, UNAUTHENTICATED = grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED
EVALUATED = rollout_pb2.Runner(
    python_program=rollout_pb2.PythonProgram(path="/agent.py"), reward_policy=rollout_pb2.REWARD_POLICY_EVALUATOR
)
TIMED = rollout_pb2.Runner(python_program=rollout_pb2.PythonProgram(path="/agent.py"))
TIMED.timeout.FromSeconds(100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """A gateway with its keys, and a run `r`."""

    gateway: RunningGateway
    keys: Keys

    async def start(self, rollout_id: str, runner: rollout_pb2.Runner | None = None) -> str:
        """Create a rollout, start its first attempt; the attempt's token."""
        await self.gateway.create_rollout(rollout_id, runner=runner, start=False)
        request = rollout_pb2.StartRolloutRequest(name=f"rollouts/{rollout_id}", worker="w")
        return (await self.gateway.rollouts.StartRollout(request)).token

    async def issue(self, name: str, *scopes: identity_pb2.TokenScope.ValueType) -> str:
        """A token from the operator."""
        request = identity_pb2.IssueTokenRequest(name=name, scopes=scopes)
        return (await IdentityServiceStub(self.gateway.channel).IssueToken(request)).token

    async def append(self, token: str, event: event_pb2.AppendEventRequest) -> event_pb2.Event:
        """Append with a token."""
        async with connect(self.gateway.address, bearer(token)) as channel:
            return (await EventServiceStub(channel).AppendEvent(event)).event

    async def look(self, key: str) -> rollout_pb2.ListRolloutsResponse:
        """List rollouts with a key."""
        async with connect(self.gateway.address, bearer(key)) as channel:
            return await RolloutServiceStub(channel).ListRollouts(rollout_pb2.ListRolloutsRequest())


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    keys = make_keys(tmp_path / "keys")
    async with FakeEngine() as engine, running_gateway(tmp_path, keys=keys) as gateway:
        await gateway.register_model(engine.url)
        await gateway.create_run("r")
        yield Guarded(gateway=gateway, keys=keys)


def note(rollout: str, attempt: int = 1) -> event_pb2.AppendEventRequest:
    return event_pb2.AppendEventRequest(parent=f"rollouts/{rollout}", attempt=attempt, note=event_pb2.Note(type="t"))


def reward(rollout: str, attempt: int = 1) -> event_pb2.AppendEventRequest:
    return event_pb2.AppendEventRequest(
        parent=f"rollouts/{rollout}", attempt=attempt, reward=event_pb2.Reward(value=1.0)
    )


MODULES = (attempt_pb2, event_pb2, identity_pb2, inference_pb2, model_pb2, phase_pb2, rollout_pb2, run_pb2)
METHODS: dict[str, bool] = {
    f"/{service.full_name}/{method.name}": method.server_streaming
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
"""All rpcs of the gateway, as `/package.Service/Method`, and whether they answer with a stream."""
PUBLIC = "/whippletree.v1.IdentityService/GetKeySet"
APPEND = "/whippletree.v1.EventService/AppendEvent"


async def answer_to(guarded: Guarded, key: str, method: str) -> grpc.StatusCode:
    """The code by which an empty request is answered."""
    async with connect(guarded.gateway.address, bearer(key)) as channel:
        try:
            if METHODS[method]:
                streamed: Any = channel.unary_stream(method)
                await streamed(b"").read()
            else:
                plain: Any = channel.unary_unary(method)
                await plain(b"")
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_the_list_of_methods_is_whole() -> None:
    served = {name.split("/")[1] for name in METHODS}
    assert served == {name for name in contract.public_services() if "Bridge" not in name}


async def test_nothing_is_done_without_a_key(guarded: Guarded) -> None:
    for key in ("", "wt_00000000_" + "A" * 43):
        answers = {method: await answer_to(guarded, key, method) for method in METHODS}
        assert {method for method, code in answers.items() if code != UNAUTHENTICATED} == {PUBLIC}


async def test_an_agents_token_opens_nothing_but_its_own_events(guarded: Guarded) -> None:
    token = await guarded.start("a")
    answers = {method: await answer_to(guarded, token, method) for method in METHODS}
    allowed = {method for method, code in answers.items() if code != grpc.StatusCode.PERMISSION_DENIED}
    assert allowed == {PUBLIC, APPEND}


async def test_an_agent_writes_to_its_own_attempt(guarded: Guarded) -> None:
    token = await guarded.start("a")
    assert (await guarded.append(token, note("a"))).attempt == 1
    assert (await guarded.append(token, reward("a"))).reward.value == 1.0


@pytest.mark.parametrize("event", [note("b"), reward("b"), note("a", 2), reward("a", 2), reward("a", 0)], ids=repr)
async def test_an_agent_writes_to_nothing_else(guarded: Guarded, event: event_pb2.AppendEventRequest) -> None:
    token = await guarded.start("a")
    await guarded.start("b")
    async with refused(PermissionDeniedError):
        await guarded.append(token, event)
    for rollout in ("a", "b"):
        listed = await guarded.gateway.events.ListEvents(event_pb2.ListEventsRequest(parent=f"rollouts/{rollout}"))
        assert not listed.events


async def test_a_token_of_a_deleted_rollout_writes_nothing_to_one_made_anew_with_its_id(guarded: Guarded) -> None:
    old = await guarded.start("a")
    await delete(guarded.gateway, "r", force=True)
    await guarded.gateway.create_run("r")
    new = await guarded.start("a")
    async with refused(NotFoundError) as errors:
        await guarded.append(old, reward("a"))
    assert "made anew" in str(errors[0])
    assert (await guarded.append(new, reward("a"))).reward.value == 1.0
    assert (await guarded.append(await guarded.issue("rollouts/a/attempts/1"), note("a"))).attempt == 1


async def test_where_an_evaluator_rewards_the_agent_does_not(guarded: Guarded) -> None:
    token = await guarded.start("a", EVALUATED)
    async with refused(PermissionDeniedError) as errors:
        await guarded.append(token, reward("a"))
    assert errors[0].metadata["needs"] == "reward"
    await guarded.append(token, note("a"))
    evaluator = await guarded.issue("rollouts/a/attempts/1", identity_pb2.TOKEN_SCOPE_REWARD)
    await guarded.append(evaluator, reward("a"))
    async with refused(PermissionDeniedError):
        await guarded.append(evaluator, note("a"))


async def test_a_repeated_start_gives_the_same_token(guarded: Guarded) -> None:
    await guarded.gateway.create_rollout("a", start=False)
    request = rollout_pb2.StartRolloutRequest(name="rollouts/a", worker="w", request_id="1")
    first, second = [await guarded.gateway.rollouts.StartRollout(request) for _ in range(2)]
    assert first.token == second.token != ""


async def test_a_token_outlives_the_rollouts_timeout(guarded: Guarded) -> None:
    token = await guarded.start("a", TIMED)
    claims = await verifier(guarded.keys).claims(token)
    assert claims.expires - claims.issued == 100 + 3600
    assert (claims.rollout, claims.attempt, claims.mode, claims.run) == ("a", 1, "train", "r")
    assert claims.scopes == frozenset(Scope)


async def test_tokens_are_issued_for_attempts_that_are(guarded: Guarded) -> None:
    await guarded.start("a")
    async with refused(NotFoundError):
        await guarded.issue("rollouts/a/attempts/2")
    async with refused(NotFoundError):
        await guarded.issue("rollouts/b/attempts/1")


async def test_the_set_of_keys_is_public_and_a_json_web_key_set(guarded: Guarded) -> None:
    async with connect(guarded.gateway.address) as channel:
        found = await IdentityServiceStub(channel).GetKeySet(identity_pb2.GetKeySetRequest())
    (key,) = found.keys
    assert (key.kty, key.crv, key.alg, key.use, len(key.x)) == ("OKP", "Ed25519", "EdDSA", "sig", 43)


async def test_operators_keys_come_and_go_while_it_serves(guarded: Guarded) -> None:
    (first,) = read_operators(guarded.keys.folder)
    second = add_operator(guarded.keys.folder, "second", now=time.time())
    await until(OK, lambda: guarded.look(second))
    await guarded.look(guarded.keys.operator)
    revoke_operator(guarded.keys.folder, first.key_id)
    await until(UNAUTHENTICATED, lambda: guarded.look(guarded.keys.operator))
    await guarded.look(second)


async def test_signing_keys_rotate_while_it_serves(guarded: Guarded) -> None:
    token = await guarded.start("a")
    (old,) = (guarded.keys.folder / "signing").glob("*.pem")
    add_signing_key(guarded.keys.folder, now=time.time() + 1)
    await guarded.append(token, note("a"))
    old.unlink()
    await until(UNAUTHENTICATED, lambda: guarded.append(token, note("a")))
    fresh = await guarded.issue("rollouts/a/attempts/1")
    await guarded.append(fresh, note("a"))


async def test_without_identity_there_are_no_tokens(tmp_path: Path) -> None:
    async with FakeEngine() as engine, running_gateway(tmp_path) as gateway:
        await gateway.register_model(engine.url)
        await gateway.create_run("r")
        await gateway.create_rollout("a", start=False)
        started = await gateway.rollouts.StartRollout(rollout_pb2.StartRolloutRequest(name="rollouts/a", worker="w"))
        assert started.token == ""
        async with refused(WrongStateError):
            await IdentityServiceStub(gateway.channel).IssueToken(
                identity_pb2.IssueTokenRequest(name="rollouts/a/attempts/1")
            )


def verifier(keys: Keys) -> TokenVerifier:
    return TokenVerifier(KeyFolder(keys.folder, time.time), time.time)


async def until(code: grpc.StatusCode, work: Callable[[], Awaitable[object]]) -> None:
    """Repeat what is done or unauthenticated until it ends so: the gateway looks at its folder every second."""
    ended = None
    while ended != code:
        try:
            await work()
            ended = grpc.StatusCode.OK
        except grpc.aio.AioRpcError as error:
            ended = error.code()
            if ended != grpc.StatusCode.UNAUTHENTICATED:
                raise
