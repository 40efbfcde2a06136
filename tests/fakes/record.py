"""What tests of deletions do to a gateway."""

from whippletree.v1 import event_pb2, rollout_pb2, run_pb2

from tests.fakes.gateway import RunningGateway


async def delete(gateway: RunningGateway, run: str, *, force: bool = False, request_id: str = "") -> int:
    request = run_pb2.DeleteRunRequest(name=f"runs/{run}", force=force, request_id=request_id)
    return (await gateway.runs.DeleteRun(request)).deleted_rollout_count


async def finish(gateway: RunningGateway, rollout: str) -> None:
    state = rollout_pb2.ROLLOUT_STATE_SUCCEEDED
    request = rollout_pb2.TransitionRolloutRequest(name=f"rollouts/{rollout}", state=state)
    await gateway.rollouts.TransitionRollout(request)


async def log(gateway: RunningGateway, rollout: str, text: str, request_id: str = "") -> int:
    payload = event_pb2.Log(stream="stdout", text=text)
    request = event_pb2.AppendEventRequest(parent=f"rollouts/{rollout}", attempt=1, log=payload, request_id=request_id)
    return (await gateway.events.AppendEvent(request)).event.sequence


async def log_of_other(gateway: RunningGateway) -> None:
    await gateway.create_run("other")
    await gateway.create_rollout("x", run_id="other")
    await log(gateway, "x", "line")
