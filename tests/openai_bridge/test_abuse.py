"""Requests that no harness means: each is a clear refusal in its dialect's shape, and costs bounded memory."""

import gzip
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import zstandard
from google.api.httpbody_pb2 import HttpBody
from hypothesis import given, settings
from hypothesis import strategies as some
from whippletree.v1 import bridge_pb2, bridge_pb2_grpc

from openai_bridge.dialects import anthropic_messages, openai_chat
from openai_bridge.settings import LimitSettings
from tests.fakes.bridge import Bridge, read, says_hi, stub
from tests.fakes.bridge import bridge as bridge_of
from tests.fakes.chat_model import write_chat_model
from tests.fakes.policy import FakePolicy, serving
from tests.fakes.stack import service
from whippletree.channel import connect
from whippletree.errors import InvalidFieldError, RequestTooLargeError

Ask = Callable[..., Any]
USER = '{"role":"user","content":"hi"}'
MIB = 1 << 20
BODY = 8 * MIB
VALUES = 100_000
COST = 20
"""Bytes of memory for a byte of a body at most: what is received, parsed, digested and rendered lies side by side, some
of it with four bytes a character."""
VALUE_COST = 300
"""Bytes of memory for one of the smallest JSON values."""


def body(more: str = "", messages: str = USER) -> bytes:
    parts = ['"model":"tiny"', '"max_tokens":9', f'"messages":[{messages}]', *([more] if more else [])]
    return ("{" + ",".join(parts) + "}").encode()


LONG = "x" * 1_000_000


def says(text: str) -> str:
    return '{"role":"user","content":"' + text + '"}'


@pytest_asyncio.fixture
async def ask(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Ask]:
    """A call of the dialect that the test names."""
    async with bridge_of(tmp_path) as bridge, connect(bridge.address) as channel:
        messages: Any = bridge_pb2_grpc.AnthropicBridgeServiceStub(channel)

        def message(data: bytes, metadata: tuple[tuple[str, str], ...] = ()) -> Any:
            asked = bridge_pb2.CreateMessageRequest(rollout="r1", attempt="1", mode="train", body=HttpBody(data=data))
            return messages.CreateMessage(asked, metadata=metadata)

        yield message if request.param == "anthropic" else bridge.call


both = pytest.mark.parametrize("ask", ["openai", "anthropic"], indirect=True)
REFUSED = [
    (b"", 400),
    (b"null", 400),
    (b"\xef\xbb\xbf" + body(), 400),
    (body().decode().encode("utf-16"), 400),
    (b'{"model":"tiny","messages":[{"role":"user","content":"\xff"}]}', 400),
    (body(messages=says("\\ud800")), 400),
    (body('"temperature":NaN'), 400),
    (body('"temperature":1e400'), 400),
    (body('"max_tokens":1e30'), 400),
    (body('"max_tokens":' + "9" * 400), 400),
    (body('"x":' + "[" * 2000 + "]" * 2000), 400),
    (body('"x":' + "[" * 300 + "]" * 300), 400),
    (body('"x":[' + "{}," * 1_000_000 + "{}]"), 413),
    (body(messages=",".join([USER] * 10_001)), 413),
    (body('"tools":[' + '{"name":"f","input_schema":{}},' * 1000 + "{}]"), 413),
    (body(messages=says(LONG)), 400),
    (body(f'"tools":[{{"name":"f","description":"{LONG}","input_schema":{{"a":"{LONG}"}}}}]'), 400),
    (body('"stop":' + json.dumps(["a"] * 17) + ',"stop_sequences":' + json.dumps(["a"] * 17)), 400),
    (body('"stop":["' + "a" * 1001 + '"],"stop_sequences":["' + "a" * 1001 + '"]'), 400),
]


@both
async def test_hostile_bodies_are_refused_in_the_dialects_shape(ask: Ask) -> None:
    for data, status in REFUSED:
        answered, told = await read(ask(data))
        assert answered == status, (data[:200], told)
        error = json.loads(told)["error"]
        assert error["type"] in {"invalid_request_error", "request_too_large"}
        assert error["message"]
        assert len(told) < 2_000
    assert (await read(ask(body())))[0] == 200


@both
async def test_odd_but_clear_bodies_are_served(ask: Ask) -> None:
    for data in (
        body('"max_tokens":3,"max_tokens":4'),  # the last one counts
        body('"max_tokens":1000000000000'),
        body(messages=says("\\u0000")),
        body('"metadata":{"a":"' + "x" * MIB + '"}'),
        body('"x":' + "[" * 200 + "]" * 200),
        body(messages=",".join([USER] * 1000)),
    ):
        assert (await read(ask(data)))[0] == 200


@both
async def test_compressed_bodies_are_read_and_bombs_are_not(ask: Ask) -> None:
    bomb = gzip.compress(bytes(65 * MIB))
    for data, coding, status in (
        (gzip.compress(body()), "gzip", 200),
        (body(), "identity", 200),
        (body(), "gzip", 400),
        (zstandard.compress(body()), "zstd", 200),
        (zstandard.compress(gzip.compress(body())), "gzip, zstd", 200),
        (body(), "zstd", 400),
        (body(), "br", 415),
        (bomb, "gzip", 413),
        (zstandard.compress(bytes(65 * MIB)), "zstd", 413),
    ):
        answered, told = await read(ask(data, metadata=(("content-encoding", coding),)))
        assert answered == status, told
        assert status == 200 or json.loads(told)["error"]["message"]


JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=5),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)
BLOCK = some.fixed_dictionaries(
    {"type": some.sampled_from(["text", "thinking", "tool_use", "tool_result", "image"]) | JSON},
    optional=dict.fromkeys(("text", "thinking", "id", "name", "input", "tool_use_id", "content"), JSON),
)
MESSAGE = some.fixed_dictionaries(
    {"role": some.sampled_from(["user", "assistant", "system", "tool"]) | JSON},
    optional={"content": some.lists(BLOCK, max_size=3) | JSON, "tool_calls": JSON, "reasoning_content": JSON},
)
FIELDS = ("system", "tools", "tool_choice", "thinking", "stop", "stop_sequences", "n", "max_tokens", "seed", "top_k")
REQUEST = some.fixed_dictionaries(
    {"model": some.just("m") | JSON, "messages": some.lists(MESSAGE, max_size=3) | JSON},
    optional=dict.fromkeys((*FIELDS, "logit_bias", "chat_template_kwargs", "stream_options"), JSON),
)


quickly = settings(max_examples=60, deadline=None)
parsers = pytest.mark.parametrize("parse", [openai_chat.parse, anthropic_messages.parse])


def outcome(parse: Callable[..., Any], data: bytes) -> str:
    """The place that is wrong, or nothing. Any other exception is a fault of ours."""
    try:
        parse(data, LimitSettings())
    except (InvalidFieldError, RequestTooLargeError) as error:
        return error.metadata["field"]
    return ""


@parsers
@quickly
@given(request=REQUEST)
def test_any_json_is_understood_or_refused_and_never_a_fault(parse: Callable[..., Any], request: Any) -> None:
    assert isinstance(outcome(parse, json.dumps(request).encode()), str)


@parsers
@quickly
@given(data=some.binary(max_size=60))
def test_any_bytes_are_refused_and_never_a_fault(parse: Callable[..., Any], data: bytes) -> None:
    assert outcome(parse, data)


async def test_memory_is_bounded_by_the_size_of_the_body(tmp_path: Path) -> None:
    """Of one body, and of many one after the other: nothing of a refused one is left."""
    policy = FakePolicy(tokenizer_path=write_chat_model(tmp_path / "model"), reply=says_hi)
    large = [
        (body(messages=says("x " * (BODY // 2))), (), 400),
        (body(messages=says("é😀" * (BODY // 6))), (), 400),
        (body('"metadata":{"a":"' + "x" * BODY + '"}'), (), 200),
        (body('"x":[' + "{}," * (BODY // 3) + "{}]"), (), 413),
        (body('"x":[' + '{"a":0},' * (VALUES // 2 - 9) + "{}]"), (), 200),
        (body(messages=says('\\"' * (BODY // 2))), (), 400),
        (b'"' + b'\\"' * (BODY // 2), (), 400),
        (gzip.compress(bytes(8 * BODY), 1), (("content-encoding", "gzip"),), 413),
    ]
    limits = ("--limits.body", str(BODY + MIB), "--limits.values", str(VALUES))
    async with (
        serving(policy) as gateway,
        service("openai_bridge", "--gateway", gateway, *limits) as process,
        connect(process.address) as channel,
    ):
        bridge = Bridge(policy=policy, gateway=gateway, address=process.address, stub=stub(channel))
        assert (await read(bridge.call(body())))[0] == 200
        before = most_memory(process.process.pid)
        for data, metadata, status in large:
            for _ in range(3):
                answered, told = await read(bridge.call(data, metadata=metadata))
                assert answered == status, told[:300]
        assert most_memory(process.process.pid) - before < COST * BODY + VALUE_COST * VALUES


def most_memory(pid: int) -> int:
    """Bytes of memory that a process has had at most."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def test_every_limit_stands_in_the_documentation_with_its_default() -> None:
    table = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()
    for name, field in LimitSettings.model_fields.items():
        value = f"{field.default >> 20} MiB" if name == "body" else f"{field.default:,}"
        assert re.search(rf"\| {value} \|.*`BRIDGE_LIMITS__{name.upper()}` \|", table), name
