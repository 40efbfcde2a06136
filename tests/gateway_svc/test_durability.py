"""What was acknowledged survives kill -9: a real process, a real signal, the same store again."""

import asyncio
from pathlib import Path

import grpc
from whippletree.v1 import event_pb2, rollout_pb2

from tests.fakes.engine import FakeEngine, Reply
from tests.fakes.gateway import RunningGateway, gateway_process


async def write_until_cut(gateway: RunningGateway, number: int, acknowledged: set[str], enough: asyncio.Event) -> None:
    """Create, start, call, append, finish, again and again; note what was acknowledged."""
    turn = 0
    while True:
        rollout = f"w{number}-{turn}"
        turn += 1
        try:
            await gateway.create_rollout(rollout)
            acknowledged.add(f"{rollout} running")
            call = (await gateway.generate(rollout, [1, number, turn], request_id=f"g-{rollout}")).call
            acknowledged.add(f"{rollout} call {call.call_id}")
            reward = event_pb2.Reward(value=turn)
            asked = event_pb2.AppendEventRequest(
                parent=f"rollouts/{rollout}", attempt=1, reward=reward, request_id=f"r-{rollout}"
            )
            event = (await gateway.events.AppendEvent(asked)).event
            acknowledged.add(f"{rollout} reward {event.sequence}")
            state = rollout_pb2.ROLLOUT_STATE_SUCCEEDED
            await gateway.rollouts.TransitionRollout(
                rollout_pb2.TransitionRolloutRequest(name=f"rollouts/{rollout}", state=state)
            )
            acknowledged.add(f"{rollout} succeeded")
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                return
            raise
        if len(acknowledged) > 200:
            enough.set()


async def everything(gateway: RunningGateway) -> list[str]:
    """The whole record in the same words, a line for each time that it is there."""
    found: list[str] = []
    rollouts = (await gateway.rollouts.ListRollouts(rollout_pb2.ListRolloutsRequest(page_size=1000))).rollouts
    for rollout in rollouts:
        name = rollout.name[9:]
        found += [f"{name} running"] if rollout.attempt else []
        found += [f"{name} succeeded"] if rollout.state == rollout_pb2.ROLLOUT_STATE_SUCCEEDED else []
        for event in await gateway.list_events(name):
            if event.HasField("model_call"):
                found.append(f"{name} call {event.model_call.call_id}")
            else:
                found.append(f"{name} reward {event.sequence}")
    return found


async def test_every_acknowledged_write_survives_a_kill(tmp_path: Path, engine: FakeEngine) -> None:
    acknowledged: set[str] = set()
    enough = asyncio.Event()
    async with gateway_process(tmp_path) as (gateway, process):
        await gateway.register_model(engine.url)
        await gateway.create_run("r")
        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(write_until_cut(gateway, number, acknowledged, enough))
            await enough.wait()
            process.kill()
    async with gateway_process(tmp_path) as (gateway, _):
        found = await everything(gateway)
        assert acknowledged <= set(found)
        assert len(found) == len(set(found)), "nothing is doubled"


async def test_a_call_cut_by_a_kill_is_repeated_with_its_id(tmp_path: Path, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5, 6], gates={0: gate})
    async with gateway_process(tmp_path) as (gateway, process):
        await gateway.register_model(engine.url)
        await gateway.create_run("r")
        await gateway.create_rollout("a")
        cut = asyncio.create_task(gateway.generate("a", [1], request_id="k"))
        await engine.wait_received("/generate")
        process.kill()
        await asyncio.wait([cut])
        assert isinstance(cut.exception(), grpc.aio.AioRpcError)
    gate.set()
    async with gateway_process(tmp_path) as (gateway, _):
        first = await gateway.generate("a", [1], request_id="k")
        assert await gateway.generate("a", [1], request_id="k") == first
        assert len(await gateway.list_events("a")) == 1
