"""Several samplings of one prompt: the prompt is stored once, whoever is recorded first."""

import asyncio
from pathlib import Path

import pytest
from whippletree.v1 import event_pb2, inference_pb2, model_call_pb2

from gateway_svc import archive
from tests.fakes.engine import FakeEngine, Reply
from tests.fakes.gateway import RunningGateway, packed, record_of
from whippletree.tokens import unpack_ids

PROMPT = list(range(1, 41))


async def choose(
    gateway: RunningGateway, prompt: list[int], *, choice: int = 0, count: int = 1, body: bytes = b""
) -> model_call_pb2.ModelCall:
    """One choice of a request for several, or a request with this body."""
    request = inference_pb2.GenerateRequest(
        rollout="rollouts/a",
        attempt=1,
        prompt_token_ids=packed(prompt),
        request_id=f"{choice} {body!r} {len(prompt)} {count}",
        choice_index=choice,
        choice_count=count,
        body_digest=body,
    )
    return (await gateway.inference.Generate(request)).call


async def stored(gateway: RunningGateway) -> list[tuple[int, int]]:
    """(shared tokens, stored tokens) of every prompt."""
    events = await gateway.list_events("a", event_pb2.EVENT_VIEW_PACKED)
    return [(event.model_call.shared_token_count, len(event.model_call.packed.prompt_suffix) // 4) for event in events]


async def check(gateway: RunningGateway, folder: Path, prompts: list[list[int]]) -> None:
    """Every prompt comes back as it was, and the record is sound."""
    events = await gateway.list_events("a")
    assert [list(event.model_call.prompt_token_ids) for event in events] == prompts
    assert archive.look_through(record_of(folder)).faults == []


@pytest.mark.parametrize("continuing", [False, True], ids=["of a first prompt", "of a prompt that continues a call"])
async def test_choices_of_one_request_store_their_prompt_once(
    ready: RunningGateway, engine: FakeEngine, tmp_path: Path, continuing: bool
) -> None:
    begin: list[list[int]] = []
    prompt = PROMPT
    if continuing:
        engine.reply = lambda ids: Reply([7])
        await choose(ready, [1, 2])
        begin, prompt = [[1, 2]], [1, 2, 7, *PROMPT]
    numbers = iter(range(50, 60))
    engine.reply = lambda ids: Reply([next(numbers), 9])
    await asyncio.gather(*(choose(ready, prompt, choice=number, count=3) for number in range(3)))
    assert (await stored(ready))[len(begin) :] == [
        (3 if continuing else 0, 40),
        (len(prompt), 0),
        (len(prompt), 0),
    ]
    events = await ready.list_events("a")
    second = events[-1].model_call
    longer = [*second.prompt_token_ids, *second.response_token_ids, 8]
    assert (await choose(ready, longer)).parent_call_id == second.call_id
    await check(ready, tmp_path, [*begin, prompt, prompt, prompt, longer])


async def test_a_prompt_that_is_asked_again_is_stored_once(
    ready: RunningGateway, engine: FakeEngine, tmp_path: Path
) -> None:
    for number in range(3):
        request = inference_pb2.GenerateRequest(
            rollout="rollouts/a",
            attempt=1,
            prompt_token_ids=packed(PROMPT),
            request_id=f"r{number}",
            body_digest=b"body",
        )
        answer = await ready.inference.Generate(request)
        await ready.inference.MarkDelivered(
            inference_pb2.MarkDeliveredRequest(rollout="rollouts/a", call_ids=[answer.call.call_id])
        )
        assert unpack_ids(answer.response_token_ids).tolist()
    assert await stored(ready) == [(0, 40), (40, 0), (40, 0)]
    await check(ready, tmp_path, [PROMPT] * 3)


async def test_choices_of_other_prompts_share_nothing(ready: RunningGateway, tmp_path: Path) -> None:
    other = [*PROMPT[:-1], 99]
    await choose(ready, PROMPT, choice=0, count=2)
    await choose(ready, other, choice=1, count=2)
    assert await stored(ready) == [(0, 40), (0, 40)]
    await check(ready, tmp_path, [PROMPT, other])
