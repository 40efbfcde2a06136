"""The fake engine is held to what a real server answered (``sglang_shapes/``), and to its own promises."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.engine import Failure, FakeEngine, Reply

SHAPES = Path(__file__).parent / "sglang_shapes"


def shape(name: str) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads((SHAPES / f"{name}.json").read_text())
    return recorded


async def post(engine: FakeEngine, path: str, body: object) -> tuple[int, Any]:
    return await exchange(engine, "POST", path, body)


async def exchange(engine: FakeEngine, method: str, path: str, body: object) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.request(method, engine.url + path, json=body) as answer:
        text = await answer.text()
    try:
        return answer.status, json.loads(text)
    except ValueError:
        return answer.status, text


def types(value: Any) -> Any:
    """The value with every leaf replaced by its kind; null fits anything, lists are judged by their first entry."""
    if isinstance(value, dict):
        return {k: types(v) for k, v in value.items()}
    if isinstance(value, list):
        return [types(value[0])] if value else []
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def recorded_meta(body: dict[str, Any]) -> dict[str, Any]:
    meta = dict(body["meta_info"], cached_tokens_details=None)
    return {**body, "meta_info": meta}


@pytest.mark.parametrize(
    ("case", "reply"),
    [
        ("generate_length", Reply([5, 6, 7], finish="length")),
        ("generate_stop_token", Reply([664])),
    ],
)
async def test_generation_has_exactly_the_fields_of_the_real_server(case: str, reply: Reply) -> None:
    real = shape(case)
    async with FakeEngine(lambda ids: reply) as engine:
        status, body = await post(engine, "/generate", real["request"])
    assert status == real["status"]
    assert types(body) == types(recorded_meta(real["body"]))


@pytest.mark.parametrize(
    "case",
    [
        "update_weights",
        "pause_in_place",
        "continue",
        "abort_request",
        "flush_cache",
        "error_empty_prompt",
        "error_too_long",
    ],
)
async def test_answer_equals_the_real_one(case: str) -> None:
    real = shape(case)
    async with FakeEngine() as engine:
        assert await post(engine, real["path"], real["request"] or {}) == (real["status"], real["body"])


async def test_model_info_says_a_subset_of_the_real_one() -> None:
    real = shape("model_info")["body"]
    async with FakeEngine() as engine, aiohttp.ClientSession() as session:
        body = await (await session.get(engine.url + "/model_info")).json()
    assert set(body) <= set(real)
    assert {k: type(v) for k, v in body.items()} == {k: type(real[k]) for k in body}


async def test_malformed_json_is_answered_like_the_real_server() -> None:
    real = shape("error_json")
    async with FakeEngine() as engine, aiohttp.ClientSession() as session:
        answer = await session.post(engine.url + "/generate", data="{")
        assert answer.status == real["status"]
        assert set(await answer.json()) == set(real["body"])


async def test_stream_sends_cumulative_chunks_like_the_real_server() -> None:
    real = shape("generate_stream")
    async with FakeEngine(lambda ids: Reply([5, 6, 7], finish="length")) as engine:
        status, text = await post(engine, "/generate", real["request"])
    ours, theirs = ([line for line in t.split("\n\n") if line] for t in (text, real["body"]))
    assert (status, len(ours), ours[-1]) == (200, len(theirs), theirs[-1])
    pairs = [[json.loads(line.removeprefix("data: ")) for line in lines[:-1]] for lines in (ours, theirs)]
    assert [b["output_ids"][:1] for b in pairs[0]] == [[5]] * 3
    assert [len(b["output_ids"]) for b in pairs[0]] == [len(b["output_ids"]) for b in pairs[1]]
    assert [b["meta_info"]["finish_reason"] for b in pairs[0]] == [b["meta_info"]["finish_reason"] for b in pairs[1]]


async def test_weights_changed_during_a_pause_split_the_tokens_versions() -> None:
    gate = asyncio.Event()
    async with FakeEngine(lambda ids: Reply([5, 6, 7], gates={1: gate})) as engine:
        call = asyncio.create_task(post(engine, "/generate", {"rid": "g", "input_ids": [1], "return_logprob": True}))
        await engine.wait_tokens("g", 1)
        await post(engine, "/pause_generation", {"mode": "in_place"})
        await post(
            engine, "/update_weights_from_disk", {"model_path": "m", "weight_version": "v2", "flush_cache": False}
        )
        gate.set()
        await post(engine, "/continue_generation", {})
        _, body = await call
    assert body["meta_info"]["weight_versions"] == [
        {"version": "default", "start": 0, "end": 1},
        {"version": "v2", "start": 1, "end": 3},
    ]
    assert set(body["meta_info"]["weight_versions"][0]) == set(
        shape("generate_two_versions")["body"]["meta_info"]["weight_versions"][0]
    )


@pytest.mark.parametrize(
    ("path", "request_body"),
    [
        ("/abort_request", {"rid": "g"}),
        ("/abort_request", {"rid": "", "abort_all": True}),
        ("/pause_generation", {"mode": "abort"}),
    ],
)
async def test_aborted_generation_returns_the_tokens_it_has(path: str, request_body: dict[str, Any]) -> None:
    async with FakeEngine(lambda ids: Reply([5, 6, 7], gates={2: asyncio.Event()})) as engine:
        call = asyncio.create_task(post(engine, "/generate", {"rid": "g", "input_ids": [1], "return_logprob": True}))
        await engine.wait_tokens("g", 2)
        await post(engine, path, request_body)
        status, body = await call
    assert (status, body["output_ids"]) == (200, [5, 6])
    assert body["meta_info"]["finish_reason"] == shape("generate_aborted")["body"]["meta_info"]["finish_reason"]


async def test_client_that_leaves_ends_its_generation() -> None:
    async with FakeEngine(lambda ids: Reply([5, 6], gates={1: asyncio.Event()})) as engine:
        call = asyncio.create_task(post(engine, "/generate", {"rid": "g", "input_ids": [1]}))
        await engine.wait_tokens("g", 1)
        call.cancel()
        generation = await engine.wait_finished("g")
    assert generation.finish is not None
    assert generation.finish["type"] == "abort"


async def test_update_without_a_version_keeps_the_old_label() -> None:
    async with FakeEngine() as engine:
        await post(engine, "/update_weights_from_disk", {"model_path": "a", "weight_version": "v1"})
        await post(engine, "/update_weights_from_disk", {"model_path": "b"})
        assert (engine.model_path, engine.weight_version) == ("b", "v1")


async def test_scripted_failure_hits_the_next_requests_only() -> None:
    async with FakeEngine() as engine:
        engine.fail("/flush_cache", Failure(status=503), times=2)
        assert [(await post(engine, "/flush_cache", {}))[0] for _ in range(3)] == [503, 503, 200]
        assert len(engine.requests("/flush_cache")) == 3


async def test_scripted_drop_cuts_the_connection() -> None:
    async with FakeEngine() as engine:
        engine.fail("/generate", Failure(drop=True))
        with pytest.raises(aiohttp.ClientError):
            await post(engine, "/generate", {"input_ids": [1]})


async def test_reply_longer_than_allowed_is_cut_by_length() -> None:
    async with FakeEngine(lambda ids: Reply([5, 6, 7])) as engine:
        _, body = await post(engine, "/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 2}})
    assert (body["output_ids"], body["meta_info"]["finish_reason"]) == ([5, 6], {"type": "length", "length": 2})
    assert "output_token_logprobs" not in body["meta_info"]


async def test_reply_is_a_function_of_the_prompt() -> None:
    async with FakeEngine(lambda ids: Reply([len(ids)])) as engine:
        _, body = await post(engine, "/generate", {"input_ids": [1, 2, 3]})
        assert body["output_ids"] == [3]
        assert (await engine.wait_received("/generate"))[0].body["input_ids"] == [1, 2, 3]
