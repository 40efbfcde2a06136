"""EventService: what is appended is read again, and what may not be is refused."""

import math
from typing import Any

import pytest
from whippletree.v1 import event_pb2, rollout_pb2

from tests.fakes.gateway import RunningGateway, refused
from whippletree.errors import (
    InvalidFieldError,
    NotFoundError,
    RequestIdReusedError,
    RewardNotFiniteError,
    RolloutEndedError,
    StaleAttemptError,
)


def reward(value: float = 1.0, **fields: Any) -> event_pb2.AppendEventRequest:
    asked: dict[str, Any] = {"parent": "rollouts/a", "attempt": 1} | fields
    return event_pb2.AppendEventRequest(reward=event_pb2.Reward(value=value), **asked)


@pytest.fixture
async def running(gateway: RunningGateway) -> RunningGateway:
    """A gateway with the running rollout `a`."""
    await gateway.create_rollout("a")
    return gateway


async def test_rewards_notes_and_logs_are_kept_in_order(running: RunningGateway) -> None:
    note = event_pb2.AppendEventRequest(
        parent="rollouts/a", attempt=1, note=event_pb2.Note(type="plan"), may_ignore=True
    )
    note.note.data.update({"steps": 3, "names": ["x"], "none": None})
    log = event_pb2.AppendEventRequest(
        parent="rollouts/a", attempt=1, log=event_pb2.Log(stream="stdout", text="grüße\n")
    )
    made = [(await running.events.AppendEvent(one)).event for one in (reward(0.1), note, log)]
    found = await running.list_events("a")
    assert list(found) == made
    assert [event.sequence for event in found] == sorted({event.sequence for event in found})
    assert (found[0].reward.value, found[0].reward.source) == (0.1, "agent")
    assert (found[1].note.data["steps"], found[1].may_ignore) == (3, True)
    assert found[2].log.text == "grüße\n"


async def test_a_repeated_append_makes_one_event(running: RunningGateway) -> None:
    first = await running.events.AppendEvent(reward(request_id="x"))
    assert await running.events.AppendEvent(reward(request_id="x")) == first
    assert len(await running.list_events("a")) == 1
    async with refused(RequestIdReusedError):
        await running.events.AppendEvent(reward(2.0, request_id="x"))
    await running.events.AppendEvent(reward())
    await running.events.AppendEvent(reward())
    assert len(await running.list_events("a")) == 3


async def test_a_note_s_id_is_in_nobody_s_way(running: RunningGateway) -> None:
    note = event_pb2.AppendEventRequest(
        parent="rollouts/a", attempt=1, note=event_pb2.Note(type="plan"), request_id="x", may_ignore=True
    )
    await running.events.AppendEvent(note)
    await running.events.AppendEvent(reward(request_id="x"))
    assert [event.WhichOneof("payload") for event in await running.list_events("a")] == ["note", "reward"]


async def test_a_repeat_after_the_end_still_gets_its_answer(running: RunningGateway) -> None:
    first = await running.events.AppendEvent(reward(request_id="x"))
    await running.rollouts.CancelRollout(rollout_pb2.CancelRolloutRequest(name="rollouts/a"))
    assert await running.events.AppendEvent(reward(request_id="x")) == first
    async with refused(RolloutEndedError):
        await running.events.AppendEvent(reward(request_id="y"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
async def test_a_reward_that_is_no_number_is_refused(running: RunningGateway, value: float) -> None:
    async with refused(RewardNotFiniteError):
        await running.events.AppendEvent(reward(value))
    assert not await running.list_events("a")


async def test_a_reward_without_a_value_is_refused_and_zero_is_one(running: RunningGateway) -> None:
    missing = reward()
    missing.reward.ClearField("value")
    async with refused(InvalidFieldError):
        await running.events.AppendEvent(missing)
    await running.events.AppendEvent(reward(0.0))
    assert [event.reward.value for event in await running.list_events("a")] == [0.0]


@pytest.mark.parametrize("attempt", [0, 2])
async def test_another_attempt_may_not_write(running: RunningGateway, attempt: int) -> None:
    async with refused(StaleAttemptError):
        await running.events.AppendEvent(reward(attempt=attempt))


async def test_an_unknown_rollout_has_no_events(running: RunningGateway) -> None:
    async with refused(NotFoundError):
        await running.events.AppendEvent(reward(parent="rollouts/none"))
    async with refused(NotFoundError):
        await running.list_events("none")


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"note": {"type": ""}},
        {"note": {"type": "x" * 129}},
        {"log": {"text": "x" * 65537}},
        {"reward": {"value": 1.0, "call_id": "none"}},
    ],
    ids=["empty", "no type", "long type", "long text", "unknown call"],
)
async def test_a_wrong_payload_is_refused(running: RunningGateway, payload: dict[str, Any]) -> None:
    async with refused(InvalidFieldError):
        await running.events.AppendEvent(event_pb2.AppendEventRequest(parent="rollouts/a", attempt=1, **payload))


async def test_a_large_note_is_refused(running: RunningGateway) -> None:
    asked = event_pb2.AppendEventRequest(parent="rollouts/a", attempt=1, note=event_pb2.Note(type="big"))
    asked.note.data.update({"text": "x" * (1 << 20)})
    async with refused(InvalidFieldError):
        await running.events.AppendEvent(asked)


async def test_events_are_paged(running: RunningGateway) -> None:
    for value in range(5):
        await running.events.AppendEvent(reward(value))
    found, token = [], ""
    for _ in range(3):
        asked = event_pb2.ListEventsRequest(parent="rollouts/a", page_size=2, page_token=token)
        page = await running.events.ListEvents(asked)
        found += [event.reward.value for event in page.events]
        token = page.next_page_token
    assert (found, token) == ([0, 1, 2, 3, 4], "")


async def test_export_sends_rollout_by_rollout_in_the_order_asked_for(running: RunningGateway) -> None:
    await running.create_rollout("b")
    for value in range(100):
        await running.events.AppendEvent(reward(value, parent=f"rollouts/{'ab'[value % 2]}"))
    asked = event_pb2.ExportEventsRequest(parents=["rollouts/b", "rollouts/a"])
    found = [(one.rollout, one.event.reward.value) async for one in running.events.ExportEvents(asked)]
    assert found == [("rollouts/b", v) for v in range(1, 100, 2)] + [("rollouts/a", v) for v in range(0, 100, 2)]
    with_none = event_pb2.ExportEventsRequest(parents=["rollouts/none"])
    async with refused(NotFoundError):
        _ = [one async for one in running.events.ExportEvents(with_none)]
