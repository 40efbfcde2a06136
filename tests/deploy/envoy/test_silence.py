"""What dies by time: scaled down to seconds.

Not shown here: half an hour of silence (the limits that would cut it are looked at in test_config.py), and pings every
30 s, which a server without our options answers with too_many_pings after 131 s. Pings every 0.2 s do that in a second.
"""

import asyncio
import json
from pathlib import Path

import httpx

from tests.deploy.envoy.conftest import ROLLOUT
from tests.fakes.bridge import BODY, read, request, sampled, stub
from tests.fakes.chat_model import write_chat_model
from tests.fakes.policy import FakePolicy, Request, Sampled, serving
from tests.fakes.stack import envoy, service
from whippletree.channel import connect

SILENCE = 17
"""Seconds: a route's default limit is 15."""


async def test_silent_call_outlives_default_limits_and_many_pings_and_leaves_a_line_in_the_log(tmp_path: Path) -> None:
    async def silent(_: Request) -> Sampled:
        await asyncio.sleep(SILENCE)
        return sampled("at last")

    policy = FakePolicy(tokenizer_path=write_chat_model(tmp_path / "model"), reply=silent)
    pings = ("connection_keepalive: {interval: 30s", "connection_keepalive: {interval: 0.2s")
    async with (
        serving(policy) as gateway,
        service("openai_bridge", "--gateway", gateway, "--stream.keep_alive", "0") as bridge,
        envoy(gateway=gateway, bridge=bridge.bridge, folder=tmp_path, replacing=(pings,)) as url,
        httpx.AsyncClient(timeout=120) as client,
    ):
        calls = [
            client.post(f"{url}{ROLLOUT}/openai/v1/chat/completions", json={**BODY, "stream": stream})
            for stream in (False, True)
        ]
        async with connect(url.removeprefix("http://")) as channel:  # Envoy pings the bridge where it asks it by gRPC
            by_grpc = asyncio.create_task(read(stub(channel).ChatCompletions(request(json.dumps(BODY).encode()))))
            answers = await asyncio.gather(*calls)
            status, body = await by_grpc
    assert status == 200
    assert b"at last" in body
    assert [answer.status_code for answer in answers] == [200, 200]
    assert all("at last" in answer.text for answer in answers)
    assert len(policy.asked) == 3
    lines = [json.loads(line) for line in (tmp_path / "access.log").read_text().splitlines()]
    found = [(line["rollout"], line["status"]) for line in lines if line["path"].startswith(ROLLOUT)]
    assert found == [("r1", 200)] * 2
