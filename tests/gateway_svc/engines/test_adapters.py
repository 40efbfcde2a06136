"""Both kinds of engines behave as one, and each is read as its real server answered (`tests/fakes/*_shapes`)."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from whippletree.v1 import model_pb2, phase_pb2

from gateway_svc.engines import answer, vllm
from gateway_svc.engines.client import EngineClient, EngineError
from gateway_svc.engines.clients import connected
from gateway_svc.settings import EngineSettings
from gateway_svc.types import EngineKind, Finish, Sampled, Sampling
from tests.fakes import test_engine
from tests.fakes.engine import Failure, FakeEngine, Reply
from tests.fakes.gateway import RunningGateway
from tests.fakes.vllm import FakeVllm
from whippletree.tokens import pack_ids, unpack_floats, unpack_ids

DATABASES = ("sqlite",)
FAKES = Path(test_engine.__file__).parent
ASKED = Sampling(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of engine: its fake, and the paths of its server."""

    fake: type[FakeEngine]
    kind: EngineKind
    number: model_pb2.EngineKind.ValueType
    generate: str
    abort: str
    load: str


KINDS = {
    "sglang": Kind(
        fake=FakeEngine,
        kind=EngineKind.SGLANG,
        number=model_pb2.ENGINE_KIND_SGLANG,
        generate="/generate",
        abort="/abort_request",
        load="/update_weights_from_disk",
    ),
    "vllm": Kind(
        fake=FakeVllm,
        kind=EngineKind.VLLM,
        number=model_pb2.ENGINE_KIND_VLLM,
        generate="/inference/v1/generate",
        abort="/inference/v1/abort_requests",
        load="/collective_rpc",
    ),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every kind."""
    return KINDS[request.param]


@pytest.fixture
async def server(kind: Kind) -> AsyncIterator[FakeEngine]:
    """A fake of this kind."""
    async with kind.fake() as running:
        yield running


@pytest.fixture
async def client(kind: Kind) -> AsyncIterator[EngineClient]:
    """A client of this kind."""
    async with connected(EngineSettings().patterns, generate_timeout=60, control_timeout=60) as clients:
        yield clients[kind.kind]


async def ask(client: EngineClient, server: FakeEngine, *prompt: int, sampling: Sampling = ASKED) -> Sampled:
    return await client.generate(server.url, "c1", pack_ids(prompt), sampling, 1024)


async def test_a_response_has_tokens_logprobs_versions_and_its_end(client: EngineClient, server: FakeEngine) -> None:
    server.reply = lambda ids: Reply([7, 8, 2], logprobs=[-0.5, -1.5, -2.5])
    found = await ask(client, server, 1, 2)
    assert unpack_ids(found.response).tolist() == [7, 8, 2]
    assert unpack_floats(found.logprobs).tolist() == [-0.5, -1.5, -2.5]
    assert [(span.weight_version, span.start, span.end) for span in found.spans] == [("default", 0, 3)]
    assert (found.finish, found.matched_stop) == (Finish.STOP, "2")


async def test_a_response_may_end_at_its_limit(client: EngineClient, server: FakeEngine) -> None:
    server.reply = lambda ids: Reply([7, 8, 9])
    found = await ask(client, server, 1, sampling=Sampling(max_tokens=2))
    assert (unpack_ids(found.response).tolist(), found.finish) == ([7, 8], Finish.LENGTH)


async def test_an_aborted_generation_answers_with_what_it_had(
    client: EngineClient, server: FakeEngine, kind: Kind
) -> None:
    server.reply = lambda ids: Reply([7, 8, 9], gates={2: asyncio.Event()})
    call = asyncio.create_task(ask(client, server, 1))
    await server.wait_received(kind.generate)
    rid = ("generate-tokens-" if kind.kind == EngineKind.VLLM else "") + "c1"
    await server.wait_tokens(rid, 2)
    await client.abort(server.url, "another")
    await client.abort(server.url, "c1")
    found = await call
    assert (unpack_ids(found.response).tolist(), found.finish) == ([7, 8], Finish.ABORT)
    assert [(span.weight_version, span.end) for span in found.spans] == [("default", 2)]


async def test_a_cancelled_generation_is_aborted_at_the_engine(
    client: EngineClient, server: FakeEngine, kind: Kind
) -> None:
    server.reply = lambda ids: Reply([7], gates={0: asyncio.Event()})
    call = asyncio.create_task(ask(client, server, 1))
    await server.wait_received(kind.generate)
    call.cancel()
    await asyncio.wait([call])
    assert len(server.requests(kind.abort)) == 1


@pytest.mark.parametrize(
    ("failure", "refused"),
    [
        (Failure(status=400), True),
        (Failure(status=500), False),
        (Failure(status=429), False),
        (Failure(drop=True), False),
    ],
    ids=["400", "500", "429", "cut"],
)
async def test_a_refusal_is_told_from_a_failure(
    client: EngineClient, server: FakeEngine, kind: Kind, failure: Failure, refused: bool
) -> None:
    server.fail(kind.generate, failure)
    with pytest.raises(EngineError) as caught:
        await ask(client, server, 1)
    assert caught.value.refused == refused


async def test_no_redirect_is_followed(client: EngineClient, server: FakeEngine, kind: Kind) -> None:
    async with kind.fake() as elsewhere:
        server.fail(kind.generate, Failure(status=307, headers={"location": elsewhere.url + kind.generate}))
        with pytest.raises(EngineError):
            await ask(client, server, 1)
        assert not elsewhere.received


async def test_weights_are_loaded_under_their_label_and_the_cache_is_dropped(
    client: EngineClient, server: FakeEngine
) -> None:
    assert await client.weight_version(server.url) == "default"
    await client.load_weights(server.url, "weights/v1", "v1")
    assert (await client.weight_version(server.url), server.model_path, server.flushes) == ("v1", "weights/v1", 1)


async def test_weights_that_cannot_be_loaded_do_not_get_their_label(
    client: EngineClient, server: FakeEngine, kind: Kind
) -> None:
    server.fail(kind.load)
    with pytest.raises(EngineError):
        await client.load_weights(server.url, "weights/v1", "v1")
    assert await client.weight_version(server.url) != "v1"


@pytest.mark.parametrize("kind", ["vllm"], indirect=True)  # SGLang's server changes weights and label in one request
async def test_an_engine_left_between_two_weights_has_the_label_of_neither(
    client: EngineClient, server: FakeEngine
) -> None:
    await client.load_weights(server.url, "weights/v1", "v1")
    server.fail("/reset_prefix_cache")
    with pytest.raises(EngineError):
        await client.load_weights(server.url, "weights/v2", "v2")
    assert await client.weight_version(server.url) not in {"v1", "v2"}


async def test_a_gateway_interrupts_publishes_and_goes_on(
    gateway: RunningGateway, server: FakeEngine, kind: Kind
) -> None:
    model = model_pb2.Model(name="models/tiny", context_length=2048, vocabulary_size=1024)
    model.engines.add(address=server.url, kind=kind.number)
    made = (await gateway.models.RegisterModel(model_pb2.RegisterModelRequest(model=model))).model
    assert made.engines[0].kind == kind.number
    await gateway.create_rollout("a")
    replies = iter([Reply([5, 6], gates={1: asyncio.Event()}), Reply([7, 8])])
    server.reply = lambda ids: next(replies)
    call = asyncio.create_task(gateway.generate("a", [1]))
    await server.wait_received(kind.generate)
    await server.wait_tokens(await first(server), 1)
    request = model_pb2.PublishWeightsRequest(
        name="models/tiny", weight_version="v1", weights_path="weights/v1", in_flight=phase_pb2.IN_FLIGHT_INTERRUPT
    )
    await gateway.models.PublishWeights(request)
    answered = await call
    assert unpack_ids(answered.response_token_ids).tolist() == [5, 7, 8]
    spans = [(span.weight_version, span.start, span.end) for span in answered.call.weight_versions]
    assert spans == [("default", 0, 1), ("v1", 1, 3)]


async def first(server: FakeEngine) -> str:
    """The id of the first generation, once there is one."""
    while not server.generations:
        await asyncio.sleep(0)
    return next(iter(server.generations))


def shape(folder: str, name: str) -> Any:
    return json.loads((FAKES / folder / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("name", "finish", "count", "matched"),
    [
        ("generate_length", Finish.LENGTH, 3, ""),
        ("generate_stop_token", Finish.STOP, 1, "983"),
        ("generate_stop_string", Finish.STOP, 6, "r"),
        ("generate_aborted", Finish.ABORT, 14, ""),
    ],
)
def test_what_vllm_really_answered_is_read(name: str, finish: Finish, count: int, matched: str) -> None:
    found = vllm.sampled(shape("vllm_shapes", name)["body"], 1024)
    assert (found.finish, found.count, found.matched_stop) == (finish, count, matched)
    assert (unpack_floats(found.logprobs) < 0).all()
    assert found.spans[-1].end == count


@pytest.mark.parametrize("name", ["generate_length", "generate_stop_token", "generate_aborted"])
async def test_the_fake_vllm_has_exactly_the_fields_of_the_real_one(name: str) -> None:
    real = shape("vllm_shapes", name)
    finish = real["body"]["choices"][0]
    reply = Reply(finish["token_ids"], finish={"type": finish["finish_reason"], "matched": finish["stop_reason"]})
    async with FakeVllm(lambda ids: reply) as server:
        _, body = await test_engine.post(server, real["path"], real["request"])
    assert test_engine.types(body) == test_engine.types(real["body"])


@pytest.mark.parametrize("name", ["weight_info", "reload_weights", "reset_prefix_cache", "update_weight_version"])
async def test_the_fake_vllm_answers_about_weights_as_the_real_one(name: str) -> None:
    real = shape("vllm_shapes", name)
    async with FakeVllm() as server:
        found = await test_engine.exchange(server, real["method"], real["path"], real["request"])
    assert found == (real["status"], real["body"])


def test_a_token_of_vllm_without_a_logprob_is_refused() -> None:
    body = shape("vllm_shapes", "generate_length")["body"]
    body["choices"][0]["logprobs"]["content"][1]["logprob"] = vllm.MISSING
    with pytest.raises(ValueError, match="missing"):
        vllm.sampled(body, 1024)


@pytest.mark.parametrize("body", [None, [], {}, {"choices": []}, {"choices": [{"token_ids": None}]}])
def test_what_is_no_answer_is_refused(body: object) -> None:
    for read in (answer.sampled, vllm.sampled):
        with pytest.raises(ValueError, match=r"expected form|values to unpack"):
            read(body, 1024)
