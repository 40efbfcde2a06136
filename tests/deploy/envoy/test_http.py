"""Plain HTTP through Envoy: paths, shapes of errors, sizes, disconnects, numbers."""

import asyncio
import json
import resource
from typing import Any

import httpx
import pytest
from whippletree.v1 import model_call_pb2

from tests.deploy.envoy.conftest import ROLLOUT, Front
from tests.fakes.bridge import BODY, TEXT
from tests.fakes.policy import Request, Sampled

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT = "/chat/completions"
CALLS = 2_000


@pytest.mark.parametrize(
    "path",
    [
        f"{ROLLOUT}/openai/v1/chat/completions",
        f"{ROLLOUT}/openai/v1//chat/completions",
        f"{ROLLOUT}/openai/chat/completions",
        f"/{ROLLOUT}//openai/v1///chat/completions",
        f"{ROLLOUT}/openai/v1/chat/completions?api-version=2024-10-21&beta=true&client_version=0.1",
    ],
)
async def test_slashes_are_collapsed_and_unknown_query_ignored(
    front: Front, client: httpx.AsyncClient, path: str
) -> None:
    answer = await client.post(front.url + path, json=BODY)
    assert (answer.status_code, answer.history) == (200, [])
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", [f"{ROLLOUT}/openai/v1", f"/{ROLLOUT}/openai//v1", f"{ROLLOUT}/openai"])
async def test_a_query_names_no_other_rollout_attempt_or_mode(
    front: Front, client: httpx.AsyncClient, path: str
) -> None:
    answer = await client.post(f"{front.url}{path}/chat/completions?rollout=r2&attempt=7&mode=eval", json=BODY)
    assert answer.status_code == 200
    asked = front.policy.asked[-1]
    assert (asked.rollout, asked.attempt, asked.mode) == ("rollouts/r1", 1, model_call_pb2.CALL_MODE_TRAIN)


@pytest.mark.parametrize(
    "path",
    [
        f"{ROLLOUT}/openai/v1/v1/chat/completions",
        f"{ROLLOUT}/openai/v1/none",
        f"{ROLLOUT}/openai/none",
        f"{ROLLOUT}/chat/completions",
        f"{ROLLOUT}/openai/v1",
        f"{ROLLOUT}/openai/deployments/tiny/embeddings?api-version=2024-10-21",
        f"{ROLLOUT}/openai/deployments/chat/completions?api-version=2024-10-21",
        "/openai/none",
        "/openai/v2/chat/completions",
        "/openai/",
    ],
)
async def test_wrong_url_of_a_harness_is_a_404_in_openais_shape(
    front: Front, client: httpx.AsyncClient, path: str
) -> None:
    answer = await client.post(front.url + path, json=BODY)
    assert (answer.status_code, answer.history) == (404, [])
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "URL" in error["message"]


@pytest.mark.parametrize(
    ("verb", "kind"), [("PUT", "application/json"), ("DELETE", "application/json"), ("POST", "application/grpc-web")]
)
async def test_what_no_harness_sends_does_not_reach_the_bridge(
    front: Front, client: httpx.AsyncClient, verb: str, kind: str
) -> None:
    url = f"{front.openai}/chat/completions"
    answer = await client.request(verb, url, content=b"{}", headers={"content-type": kind})
    if kind == "application/json":
        assert (answer.status_code, "URL" in answer.json()["error"]["message"]) == (404, True)
    else:  # its errors are headers
        assert "grpc-status" in answer.headers
        assert answer.headers["grpc-status"] != "0"


async def test_a_refused_call_leaves_the_connections_to_the_bridge_as_they_were(
    front: Front, client: httpx.AsyncClient
) -> None:
    async def ask(body: object) -> int:
        return (await client.post(f"{front.openai}/chat/completions", json=body)).status_code

    wrong = {"model": "tiny", "messages": []}
    for _ in range(20):
        statuses = await asyncio.gather(*(ask(body) for body in [BODY, wrong] * 8))
        assert statuses == [200, 400] * 8


@pytest.mark.parametrize("base", [f"{ROLLOUT}/openai/v1", f"{ROLLOUT}/openai"])
async def test_models_are_listed_in_openais_shape_whatever_is_asked_of_them(
    front: Front, client: httpx.AsyncClient, base: str
) -> None:
    one = await client.get(f"{front.url}{base}/models/tiny")
    assert (one.status_code, one.json()["id"]) == (200, "tiny")
    answer = await client.get(f"{front.url}{base}/models?client_version=0.1")
    assert answer.status_code == 200
    assert answer.json().keys() == {"object", "data"}
    assert [model["id"] for model in answer.json()["data"]] == ["tiny", "judge"]


async def test_wrong_url_elsewhere_is_a_404_in_the_control_apis_shape(front: Front, client: httpx.AsyncClient) -> None:
    answer = await client.get(front.url + "/none")
    assert (answer.status_code, answer.json()["code"]) == (404, 5)


@pytest.mark.parametrize("slash", ["", "/", "/?beta=true"])
@pytest.mark.parametrize("api", ["", "/openai", "/openai/v1", "/anthropic", "/anthropic/v1"])
@pytest.mark.parametrize("base", ["", ROLLOUT], ids=["own path", "long path"])
async def test_a_base_url_is_there(front: Front, client: httpx.AsyncClient, base: str, api: str, slash: str) -> None:
    url = front.url + base + api + slash
    head, got = await client.head(url), await client.get(url)
    assert (head.status_code, head.content) == (200, b"")
    assert (got.status_code, got.json()) == (200, {"status": "ok"})
    refused = await client.get(url, headers={"origin": "http://example.com"})
    assert refused.status_code == 403


@pytest.mark.parametrize(
    "path", ["/none", "/openai/none", "/api", "/proxy", f"{ROLLOUT}/none", f"{ROLLOUT}/openai/v1/v1"]
)
async def test_nothing_else_is_there(front: Front, client: httpx.AsyncClient, path: str) -> None:
    head = await client.head(front.url + path)
    assert (head.status_code, head.content) == (404, b"")
    assert (await client.get(front.url + path)).status_code == 404


async def test_health(front: Front, client: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/readyz"):
        answer = await client.get(front.url + path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_request_of_a_web_page_is_refused(front: Front, client: httpx.AsyncClient) -> None:
    for path in ("/api/runs", f"{ROLLOUT}/openai/v1/chat/completions"):
        answer = await client.post(front.url + path, json=BODY, headers={"origin": "http://example.com"})
        assert answer.status_code == 403
    assert not front.policy.asked


async def test_errors_of_the_control_api_carry_their_details(front: Front, client: httpx.AsyncClient) -> None:
    answer = await client.get(front.url + "/api/rollouts/none")
    assert answer.status_code == 404
    (detail,) = answer.json()["details"]
    assert (detail["reason"], detail["domain"]) == ("NOT_FOUND", "whippletree")


async def test_malformed_json_of_the_control_api_is_a_400(front: Front, client: httpx.AsyncClient) -> None:
    answer = await client.post(front.url + "/api/rollouts", content=b"{bad")
    assert (answer.status_code, answer.json()["code"]) == (400, 3)


async def test_five_megabytes_pass_both_ways(front: Front, client: httpx.AsyncClient) -> None:
    mark = TEXT.token_to_id("<tool_response>")

    async def long(_: Request) -> Sampled:
        return Sampled(ids=[mark or 0] * 350_000)

    front.policy.reply = long
    body = {**BODY, "metadata": {"padding": "x" * 5_000_000}}
    for stream in (False, True):
        answer = await client.post(front.openai + CHAT, json={**body, "stream": stream})
        assert answer.status_code == 200
        assert len(answer.content) > 5_000_000
        assert answer.text.rstrip().endswith("[DONE]" if stream else "}")


async def test_body_over_the_limit_is_a_413(front: Front, client: httpx.AsyncClient) -> None:
    answer = await client.post(front.openai + CHAT, content=b" " * (64 << 20) + b" 1")
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize("stream", [False, True])
async def test_harness_that_closes_its_connection_cancels_the_generation(front: Front, stream: bool) -> None:
    async def never(_: Request) -> Sampled:
        await asyncio.Event().wait()
        raise AssertionError

    front.policy.reply = never
    _, writer = await asyncio.open_connection("127.0.0.1", front.port)
    writer.write(raw_request(front, {**BODY, "stream": stream}))
    await front.policy.until(lambda: len(front.policy.asked) == 1)
    writer.close()
    await writer.wait_closed()
    await front.policy.until(lambda: front.policy.cancelled == [front.policy.asked[0].request_id])


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 3 * CALLS, reason="needs more open files")
async def test_two_thousand_calls_at_once_all_succeed(front: Front) -> None:
    all_here = asyncio.Event()

    async def waits_for_all(_: Request) -> Sampled:
        if len(front.policy.asked) == CALLS:
            all_here.set()
        await all_here.wait()
        return Sampled(ids=[5, 2])

    front.policy.reply = waits_for_all
    request = raw_request(front, BODY)

    async def one() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer.partition(b"\r\n")[0]

    answers = await asyncio.gather(*(one() for _ in range(CALLS)))
    assert answers == [b"HTTP/1.1 200 OK"] * CALLS


async def test_expectation_of_100_continue_is_answered_at_once(front: Front) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
    head, _, body = raw_request(front, BODY).partition(b"\r\n\r\n")
    writer.write(head + b"\r\nexpect: 100-continue\r\n\r\n")
    assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
    writer.write(body)
    assert b"HTTP/1.1 200 OK" in await reader.read()
    writer.close()


def raw_request(front: Front, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST {ROLLOUT}/openai/v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data
