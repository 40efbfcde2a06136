"""Plays controller, harness and bridge at once for the trainer's tests: takes queued rollouts of a real gateway, makes
two model calls each, posts a reward, ends. Every call is repeated while the gateway is away.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from whippletree.v1 import (
    attempt_pb2,
    event_pb2,
    event_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_call_pb2,
    rollout_pb2,
    rollout_pb2_grpc,
)

from whippletree.channel import call, connect
from whippletree.errors import WhippletreeError
from whippletree.tokens import pack_ids, unpack_ids

Play = Callable[[str, dict[str, Any]], float | None]
"""(rollout id, input) -> reward; None = the agent fails."""


@dataclass(slots=True, kw_only=True)
class Agents:
    """Run with `async with asyncio.TaskGroup() as group: group.create_task(agents.run(address))`."""

    play: Play
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Agents that are held wait here before they end."""
    held: Callable[[str], bool] = lambda rollout_id: True
    """Which of them wait, by rollout id."""
    started: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self, address: str) -> None:
        """Without end."""
        async with connect(address) as channel, asyncio.TaskGroup() as group:
            rollouts = rollout_pb2_grpc.RolloutServiceStub(channel)
            request = rollout_pb2.WatchRolloutsRequest(states=[rollout_pb2.ROLLOUT_STATE_QUEUED])
            while True:
                try:
                    async for message in rollouts.WatchRollouts(request):
                        if message.WhichOneof("record") == "rollout":
                            group.create_task(self._guarded(channel, message.rollout))
                except grpc.aio.AioRpcError as error:
                    if error.code() != grpc.StatusCode.UNAVAILABLE:
                        raise
                await asyncio.sleep(0.1)

    async def wait_started(self, count: int) -> None:
        """Until so many have begun."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.started) >= count)

    async def wait_ended(self, count: int) -> None:
        """Until so many have ended."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.ended) >= count)

    async def _guarded(self, channel: grpc.aio.Channel, rollout: rollout_pb2.Rollout) -> None:
        """One rollout; one that was cancelled or taken before is left alone."""
        if rollout.name in self.started:
            return
        await self._note(self.started, rollout.name)
        try:
            await self._one(channel, rollout)
            await self._note(self.ended, rollout.name)
        except WhippletreeError as error:
            if error.code != grpc.StatusCode.FAILED_PRECONDITION:
                raise

    async def _one(self, channel: grpc.aio.Channel, rollout: rollout_pb2.Rollout) -> None:
        rollouts = rollout_pb2_grpc.RolloutServiceStub(channel)
        begin = rollout_pb2.StartRolloutRequest(name=rollout.name, worker="agents", request_id=str(uuid.uuid4()))
        attempt = (await repeated(lambda: rollouts.StartRollout(begin, timeout=10))).attempt.number
        mode = (
            model_call_pb2.CALL_MODE_EVAL if rollout.split == rollout_pb2.SPLIT_EVAL else model_call_pb2.CALL_MODE_TRAIN
        )
        rollout_id = rollout.name.rpartition("/")[2]
        prompt = [10, 11]
        prompt += [*await generate(channel, rollout.name, attempt, mode, prompt), 20]
        await generate(channel, rollout.name, attempt, mode, prompt)
        if self.held(rollout_id):
            await self.gate.wait()
        value = self.play(rollout_id, MessageToDict(rollout.input))
        outcome = attempt_pb2.ATTEMPT_OUTCOME_FAILED
        if value is not None:
            outcome = attempt_pb2.ATTEMPT_OUTCOME_SUCCEEDED
            events = event_pb2_grpc.EventServiceStub(channel)
            reward = event_pb2.AppendEventRequest(
                parent=rollout.name,
                attempt=attempt,
                reward=event_pb2.Reward(value=value),
                request_id=str(uuid.uuid4()),
            )
            await repeated(lambda: events.AppendEvent(reward, timeout=10))
        end = rollout_pb2.FinishRolloutRequest(
            name=rollout.name, attempt=attempt, outcome=outcome, request_id=str(uuid.uuid4())
        )
        await repeated(lambda: rollouts.FinishRollout(end, timeout=10))

    async def _note(self, names: list[str], name: str) -> None:
        async with self.changed:
            names.append(name)
            self.changed.notify_all()


async def generate(
    channel: grpc.aio.Channel, rollout: str, attempt: int, mode: model_call_pb2.CallMode.ValueType, prompt: list[int]
) -> list[int]:
    """One delivered model call; its response."""
    inference = inference_pb2_grpc.InferenceServiceStub(channel)
    request = inference_pb2.GenerateRequest(
        rollout=rollout,
        attempt=attempt,
        mode=mode,
        prompt_token_ids=pack_ids(prompt),
        dialect="test",
        request_id=str(uuid.uuid4()),
    )
    answer = await repeated(lambda: inference.Generate(request, timeout=60))
    mark = inference_pb2.MarkDeliveredRequest(rollout=rollout, call_ids=[answer.call.call_id])
    await repeated(lambda: inference.MarkDelivered(mark, timeout=10))
    return [int(token) for token in unpack_ids(answer.response_token_ids)]


async def repeated(attempt: Callable[[], Awaitable[Any]]) -> Any:
    """While the gateway is away."""
    return await call(attempt, patience=60.0)
