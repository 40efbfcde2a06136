"""A real SGLang, started with our command line, answers in the shapes that the fake engine is built on."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from whippletree.v1 import inference_pb2, model_pb2, phase_pb2

from tests.fakes.gateway import RunningGateway, running_gateway
from tests.fakes.test_engine import SHAPES, shape, types
from whippletree.cli.engine import engine_command
from whippletree.cli.project import ROOT, TRAIN_PYTHON

pytestmark = pytest.mark.e2e

LONGEST = 300.0
"""Seconds that the start may take; only a fault comes near."""
MAKE_MODELS = """
import sys
from pathlib import Path
from examples.quickstart import model, prepare
tokenizer = model.train_tokenizer(prepare.demonstrations("tokenizer", 200))
for seed, folder in enumerate(sys.argv[1:]):
    model.write_model(Path(folder), tokenizer, seed)
"""
CASES = [
    "health",
    "model_info",
    "generate_length",
    "generate_stream",
    "error_empty_prompt",
    "error_too_long",
    "error_sampling_parameter",
    "update_weights",
    "update_weights_failed",
    "pause_in_place",
    "continue",
    "abort_request",
    "flush_cache",
]


@pytest.fixture
async def models(tmp_path: Path) -> Path:
    """A folder with the models tiny0 and tiny1."""
    names = [str(tmp_path / name) for name in ("tiny0", "tiny1")]
    process = await asyncio.create_subprocess_exec(str(TRAIN_PYTHON), "-c", MAKE_MODELS, *names, cwd=ROOT)
    assert await process.wait() == 0
    return tmp_path


@pytest.fixture
async def url(models: Path) -> AsyncIterator[str]:
    """The address of a server for tiny0; afterwards it has ended and all its processes with it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = engine_command(models / "tiny0", port=port, device="cpu", python=TRAIN_PYTHON)
    log = (models / "engine.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        *command.argv, env=os.environ | dict(command.environment), stdout=log, stderr=log, start_new_session=True
    )
    try:
        address = f"http://127.0.0.1:{port}"
        async with asyncio.timeout(LONGEST):
            await ready(process, address)
        yield address
        process.terminate()
        async with asyncio.timeout(60):
            await process.wait()
        with pytest.raises(ProcessLookupError):  # its children are in its group
            os.killpg(process.pid, 0)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        log.close()


async def ready(process: asyncio.subprocess.Process, url: str) -> None:
    """Return once the server says that it is healthy."""
    async with aiohttp.ClientSession() as session:
        while True:
            assert process.returncode is None
            try:
                async with session.get(url + "/health") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.3)


async def ask(url: str, recorded: dict[str, Any], models: Path) -> tuple[int, Any]:
    """Send a recorded request again: (status, body)."""
    request = recorded["request"]
    text = request if isinstance(request, str) else json.dumps(request).replace("MODELS", str(models))
    headers = {"content-type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.request(recorded["method"], url + recorded["path"], data=text, headers=headers) as answer,
    ):
        body = await answer.text()
    try:
        return answer.status, json.loads(body)
    except ValueError:
        return answer.status, body


def comparable(body: Any) -> Any:
    """The types of an answer, without those that depend on what the server has cached."""
    if isinstance(body, dict) and "meta_info" in body:
        body = {**body, "meta_info": {**body["meta_info"], "cached_tokens_details": None}}
    return types(body)


async def test_real_engine_answers_in_the_recorded_shapes(url: str, models: Path) -> None:
    assert {f"{case}.json" for case in CASES} <= {path.name for path in SHAPES.glob("*.json")}
    differences = {}
    for case in CASES:
        recorded = shape(case)
        status, body = await ask(url, recorded, models)
        if (status, comparable(body)) != (recorded["status"], comparable(recorded["body"])):
            differences[case] = (status, body)
    assert not differences


async def test_generations_at_a_real_engine_are_interrupted_and_go_on(url: str, models: Path, tmp_path: Path) -> None:
    config = json.loads((models / "tiny0/config.json").read_text())
    async with running_gateway(tmp_path / "record") as gateway:
        await gateway.register_model(
            url, context_length=config["max_position_embeddings"], vocabulary_size=config["vocab_size"]
        )
        answers = await interrupted(gateway, config["max_position_embeddings"] - 32, str(models / "tiny1"))
        recorded = [event.model_call for event in await gateway.list_events("a")]
    whole = [(span.start, span.end) for answer in answers for span in answer.call.weight_versions]
    assert len(recorded) == len(answers) + 1
    assert all(start < end for start, end in whole)
    for call in recorded:
        assert [span.start for span in call.weight_versions[1:]] == [span.end for span in call.weight_versions[:-1]]
        assert call.weight_versions[-1].end == len(call.response_token_ids) == len(call.response_logprobs)
    versions = [[span.weight_version for span in answer.call.weight_versions] for answer in answers]
    assert ["default", "v1"] in versions, versions


async def interrupted(gateway: RunningGateway, length: int, weights: str) -> list[inference_pb2.GenerateResponse]:
    """Eight long generations, interrupted by new weights when a ninth, short one shows that they are under way."""
    await gateway.create_run("r")
    await gateway.create_rollout("a")
    calls = [asyncio.create_task(gateway.generate("a", [1, 30 + n], max_tokens=length)) for n in range(8)]
    await gateway.generate("a", [1, 40], max_tokens=8)
    request = model_pb2.PublishWeightsRequest(
        name="models/tiny", weight_version="v1", weights_path=weights, in_flight=phase_pb2.IN_FLIGHT_INTERRUPT
    )
    await gateway.models.PublishWeights(request)
    return await asyncio.gather(*calls)
