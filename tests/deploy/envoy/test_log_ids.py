"""The same ids in every service's log and in Envoy's access log."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.bridge import BODY
from tests.fakes.engine import Failure
from tests.fakes.stack import running_envoy
from tests.fakes.system import served
from whippletree.log import JsonFormatter

PATH = "/proxy/rollout/a/attempt/1/mode/train/openai/v1/chat/completions"


class Lines(logging.Handler):
    """Log lines of this process, as a service writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(JsonFormatter().format(record)))

    def of(self, logger: str) -> dict[str, Any]:
        """The first line of this logger."""
        return next(line for line in self.lines if line["logger"] == logger)


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize("joint", [False, True], ids=["apart", "together"])
async def test_a_warning_deep_in_the_gateway_names_the_harness_request(
    tmp_path: Path, lines: Lines, joint: bool
) -> None:
    async with (
        served(tmp_path, joint=joint) as (gateway, bridge, engine),
        running_envoy(gateway=gateway.address, bridge=bridge, folder=tmp_path) as envoy,
        httpx.AsyncClient() as client,
    ):
        await gateway.create_run("r")
        await gateway.create_rollout("a")
        engine.fail("/generate", Failure(status=500))
        sent = {"traceparent": f"00-{'c' * 32}-{'d' * 16}-01"}
        reply = (await client.post(envoy.url + PATH, json=BODY, headers=sent, timeout=60)).raise_for_status()
    warned = lines.of("gateway_svc.sample")
    access = json.loads((tmp_path / "access.log").read_text().splitlines()[-1])
    assert (warned["rollout"], warned["attempt"], warned["run"]) == ("a", 1, "r")
    assert warned["call"] == reply.json()["id"].removeprefix("chatcmpl-")
    assert warned["request"] == access["request_id"]
    assert warned["trace"] == "c" * 32
    assert (access["rollout"], access["attempt"]) == ("a", "1")
