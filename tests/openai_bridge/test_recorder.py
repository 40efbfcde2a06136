"""A real bridge, scraped as Prometheus does it."""

import asyncio
import json
from pathlib import Path

from whippletree.v1 import model_call_pb2

from tests.fakes.bridge import BODY, bridge, read, sampled
from tests.fakes.policy import Request, Sampled
from tests.fakes.scrape import listener, scrape_until

DATA = json.dumps(BODY).encode()
STREAMED = json.dumps({**BODY, "stream": True}).encode()


async def test_replies_are_counted_by_dialect_and_finish_and_by_what_became_of_them(tmp_path: Path) -> None:
    async def cut_short(_: Request) -> Sampled:
        return sampled("Hi", finish=model_call_pb2.FINISH_REASON_LENGTH)

    metrics = listener()
    async with bridge(tmp_path, cut_short, metrics=metrics) as running:
        for data in (DATA, STREAMED):
            status, _ = await read(running.call(data))
            assert status == 200
        found = await scrape_until(
            metrics, lambda s: s.value("whippletree_bridge_deliveries_total", outcome="written") == 2
        )
    assert found.value("whippletree_bridge_completions_total", dialect="openai.chat", finish="length") == 2
    assert found.value("whippletree_bridge_completion_seconds_count", dialect="openai.chat") == 2
    assert found.value("whippletree_bridge_prompt_seconds_count") == 2
    assert found.value("whippletree_bridge_deliveries_total", outcome="lost") == 0


async def test_keep_alives_are_counted_and_a_harness_that_goes_away_is_a_loss(tmp_path: Path) -> None:
    async def never(_: Request) -> Sampled:
        await asyncio.Event().wait()
        raise AssertionError

    metrics = listener()
    async with bridge(tmp_path, never, metrics=metrics, stream={"keep_alive": 0.01}) as running:
        call = running.call(STREAMED)
        await call.read()
        await scrape_until(metrics, lambda s: s.value("whippletree_bridge_keep_alives_total") > 1)
        await running.policy.until(lambda: len(running.policy.asked) == 1)  # before, there is nothing to lose
        call.cancel()
        await scrape_until(metrics, lambda s: s.value("whippletree_bridge_deliveries_total", outcome="lost") == 1)
