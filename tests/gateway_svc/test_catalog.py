"""RunService and ModelService through a real server."""

from pathlib import Path

import pytest
from sqlalchemy import create_engine, update
from whippletree.v1 import model_call_pb2, model_pb2, run_pb2

from gateway_svc import convert
from gateway_svc.schema import requests
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import RunningGateway, record_of, refused, running_gateway
from whippletree.errors import AlreadyExistsError, InvalidFieldError, NotFoundError, RequestIdReusedError


def wanted(run_id: str = "x", temperature: float = 0.5, request_id: str = "") -> run_pb2.CreateRunRequest:
    run = run_pb2.Run(
        policy="models/tiny",
        train_sampling=model_call_pb2.SamplingParams(temperature=temperature, stop=["END"]),
        eval_sampling=model_call_pb2.SamplingParams(temperature=0.0, top_k=1),
    )
    return run_pb2.CreateRunRequest(run_id=run_id, run=run, request_id=request_id)


def registered(**fields: object) -> model_pb2.RegisterModelRequest:
    model = model_pb2.Model(name="models/m", context_length=10, vocabulary_size=10, tokenizer_path="tok")
    request = model_pb2.RegisterModelRequest(model=model)
    for name, value in fields.items():
        setattr(request.model, name, value)
    return request


async def test_a_run_is_stored_as_asked(gateway: RunningGateway) -> None:
    made = (await gateway.runs.CreateRun(wanted())).run
    assert made.train_sampling == wanted().run.train_sampling
    assert made.eval_sampling.temperature == 0.0
    assert made.eval_sampling.HasField("temperature")
    assert not made.eval_sampling.HasField("top_p")
    assert made.max_hold.ToSeconds() == 600
    assert (await gateway.runs.GetRun(run_pb2.GetRunRequest(name="runs/x"))).run == made


async def test_creating_a_run_again_gives_what_is_stored(gateway: RunningGateway) -> None:
    first = await gateway.runs.CreateRun(wanted(request_id="k"))
    assert not first.existed
    assert (await gateway.runs.CreateRun(wanted())).existed
    assert await gateway.runs.CreateRun(wanted(request_id="k")) == first
    async with refused(AlreadyExistsError):
        await gateway.runs.CreateRun(wanted(temperature=0.6))
    async with refused(RequestIdReusedError):
        await gateway.runs.CreateRun(wanted("y", request_id="k"))


OLD = {
    "the first": {"CreateRun": b"false", "RegisterModel": b"false", "PublishWeights": b"null"},
    "the second": {
        "CreateRun": b'[false,"rollout"]',
        "RegisterModel": b'[false,{"name":"m","role":"policy","engines":[],"weight_version":"","weights_path":"",'
        b'"tokenizer_path":"tok","context_length":10,"vocabulary_size":10,"create_time":%d}]',
        "PublishWeights": b'["v1","/w"]',
    },
    "one to come": {
        "CreateRun": b'{"existed":false,"phase":"rollout","later":1}',
        "RegisterModel": b'{"existed":false,"model":{"name":"m","later":[]}}',
        "PublishWeights": b'{"later":1}',
    },
}
"""Answers as gateways of other versions remembered them."""


@pytest.mark.parametrize("answers", OLD.values(), ids=OLD.keys())
async def test_what_a_gateway_of_another_version_answered_is_answered_again(
    tmp_path: Path, engine: FakeEngine, answers: dict[str, bytes]
) -> None:
    register = registered()
    register.request_id = "m"
    publish = model_pb2.PublishWeightsRequest(
        name="models/served", weight_version="v1", weights_path="/w", request_id="p"
    )
    async with running_gateway(tmp_path) as gateway:
        await gateway.register_model(engine.url, name="served")
        run = await gateway.runs.CreateRun(wanted(request_id="r"))
        model = await gateway.models.RegisterModel(register)
        weights = await gateway.models.PublishWeights(publish)
    database = create_engine(url_of(tmp_path))
    with database.begin() as connection:
        for method, answer in answers.items():
            if b"%d" in answer:
                answer %= model.model.create_time.ToMicroseconds()
            changed = update(requests).where(requests.c.method == method).values(answer=answer)
            assert connection.execute(changed).rowcount == 1
    database.dispose()
    async with running_gateway(tmp_path) as gateway:
        assert await gateway.runs.CreateRun(wanted(request_id="r")) == run
        assert await gateway.models.RegisterModel(register) == model
        repeated = await gateway.models.PublishWeights(publish)
    assert (repeated.model.name, repeated.model.weight_version) == (weights.model.name, "v1")
    assert len(engine.requests("/update_weights_from_disk")) == 1


def url_of(folder: Path) -> str:
    """The record in this folder, for SQLAlchemy."""
    where = record_of(folder)
    return where if isinstance(where, str) else f"sqlite:///{where}"


def test_a_request_has_the_digest_that_the_first_gateways_gave_it() -> None:
    register = registered()
    register.request_id = "m"
    once = convert.once("RegisterModel", "m", register)
    assert once is not None
    assert once.digest.hex() == "ad3743c552b6c90c88ecdb1aafbdf80a"


@pytest.mark.parametrize(
    "request_",
    [
        wanted("No"),
        run_pb2.CreateRunRequest(run_id="x"),
        run_pb2.CreateRunRequest(run_id="x", run=run_pb2.Run(policy="tiny")),
        wanted(temperature=-1.0),
    ],
    ids=["id", "no policy", "policy's name", "sampling"],
)
async def test_a_wrong_run_is_refused(gateway: RunningGateway, request_: run_pb2.CreateRunRequest) -> None:
    async with refused(InvalidFieldError):
        await gateway.runs.CreateRun(request_)


async def test_runs_are_listed_by_creation_and_models_by_name(gateway: RunningGateway) -> None:
    for name in ("z", "a", "m"):
        await gateway.create_run(name)
        await gateway.register_model(name=name)
    runs = await gateway.runs.ListRuns(run_pb2.ListRunsRequest(page_size=3))
    assert [run.name for run in runs.runs] == ["runs/r", "runs/z", "runs/a"]
    rest = await gateway.runs.ListRuns(run_pb2.ListRunsRequest(page_token=runs.next_page_token))
    assert ([run.name for run in rest.runs], rest.next_page_token) == (["runs/m"], "")
    models = await gateway.models.ListModels(model_pb2.ListModelsRequest(page_size=2))
    assert [model.name for model in models.models] == ["models/a", "models/m"]
    last = await gateway.models.ListModels(model_pb2.ListModelsRequest(page_token=models.next_page_token))
    assert [model.name for model in last.models] == ["models/z"]


async def test_registering_again_replaces_engines_and_keeps_weights(gateway: RunningGateway) -> None:
    first = await gateway.models.RegisterModel(registered(weight_version="v1", weights_path="w/1"))
    assert (first.existed, first.model.role) == (False, model_pb2.MODEL_ROLE_POLICY)
    again = registered(context_length=20, weights_path="w/0")
    again.model.engines.add(address="http://127.0.0.1:1/")
    second = await gateway.models.RegisterModel(again)
    assert second.existed
    assert [engine.address for engine in second.model.engines] == ["http://127.0.0.1:1"]
    assert (second.model.context_length, second.model.weight_version, second.model.weights_path) == (20, "v1", "w/1")
    third = await gateway.models.RegisterModel(registered(weight_version="v2", weights_path="w/2"))
    assert (third.model.weight_version, third.model.weights_path) == ("v2", "w/2")


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "m"},
        {"name": "models/a b"},
        {"context_length": 0},
        {"vocabulary_size": -1},
        {"weight_version": "v" * 65},
    ],
    ids=lambda fields: "-".join(f"{key} {str(value)[:8]}" for key, value in fields.items()),
)
async def test_a_wrong_model_is_refused(gateway: RunningGateway, fields: dict[str, object]) -> None:
    async with refused(InvalidFieldError):
        await gateway.models.RegisterModel(registered(**fields))


async def test_an_engine_needs_an_http_address(gateway: RunningGateway) -> None:
    async with refused(InvalidFieldError):
        await gateway.register_model("127.0.0.1:30000")


async def test_models_are_deleted_one_by_one_or_all(gateway: RunningGateway) -> None:
    for name in ("a", "b", "c"):
        await gateway.register_model(name=name)
    for _ in range(2):
        await gateway.models.DeleteModel(model_pb2.DeleteModelRequest(name="models/a"))
    async with refused(NotFoundError):
        await gateway.models.GetModel(model_pb2.GetModelRequest(name="models/a"))
    assert (await gateway.models.DeleteAllModels(model_pb2.DeleteAllModelsRequest())).deleted_count == 2
    assert not (await gateway.models.ListModels(model_pb2.ListModelsRequest())).models


async def test_runs_and_models_outlive_the_gateway(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        run = (await gateway.runs.CreateRun(wanted())).run
        model = (await gateway.models.RegisterModel(registered())).model
    async with running_gateway(tmp_path) as gateway:
        assert (await gateway.runs.GetRun(run_pb2.GetRunRequest(name="runs/x"))).run == run
        assert (await gateway.models.GetModel(model_pb2.GetModelRequest(name="models/m"))).model == model
