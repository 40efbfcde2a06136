"""A real controller in a process of its own, and short ways to make rollouts for it and to see their ends."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from google.protobuf.duration_pb2 import Duration
from whippletree.v1 import attempt_pb2, event_pb2, rollout_pb2
from whippletree.v1.attempt_pb2_grpc import AttemptServiceStub

from tests.fakes.gateway import RunningGateway
from tests.fakes.processes import PATIENCE

QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELLED = (
    rollout_pb2.ROLLOUT_STATE_QUEUED,
    rollout_pb2.ROLLOUT_STATE_RUNNING,
    rollout_pb2.ROLLOUT_STATE_SUCCEEDED,
    rollout_pb2.ROLLOUT_STATE_FAILED,
    rollout_pb2.ROLLOUT_STATE_CANCELLED,
)
LOST = attempt_pb2.ATTEMPT_OUTCOME_INFRASTRUCTURE_FAILURE


@contextlib.asynccontextmanager
async def controller_process(
    gateway: str, work_root: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A controller that listens; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "controller_svc", "--gateway", gateway, "--local.work_root", str(work_root)),
        *("--log_level", "WARNING", "--insecure_dev", "true", *arguments),
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        assert line.startswith("listening on "), line
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]  # asyncio leaves the pipe to the garbage collector


def python(path: str, *arguments: str, preload: tuple[str, ...] = (), **limits: float) -> rollout_pb2.Runner:
    """A runner of a Python program; `limits`: timeout in seconds, max_attempts."""
    program = rollout_pb2.PythonProgram(path=path, arguments=arguments, preload=preload)
    return rollout_pb2.Runner(python_program=program, **_limits(**limits))  # type: ignore[arg-type]


def shell(text: str, **limits: float) -> rollout_pb2.Runner:
    """A runner of a shell script."""
    command = rollout_pb2.LocalCommand(command=["sh", "-c", text])
    return rollout_pb2.Runner(local_command=command, **_limits(**limits))  # type: ignore[arg-type]


def _limits(timeout: float = 0.0, max_attempts: float = 0) -> dict[str, object]:
    duration = Duration()
    duration.FromMilliseconds(int(timeout * 1000))
    return {"timeout": duration if timeout else None, "max_attempts": int(max_attempts)}


async def rollout_in(
    gateway: RunningGateway, name: str, *states: rollout_pb2.RolloutState.ValueType, attempt: int = 0
) -> rollout_pb2.Rollout:
    """Wait until a rollout is in one of these states, in this attempt or a later one."""
    request = rollout_pb2.GetRolloutRequest(name=f"rollouts/{name}")
    seen = rollout_pb2.Rollout()
    try:
        async with asyncio.timeout(PATIENCE):
            while seen.state not in states or seen.attempt < attempt:
                await asyncio.sleep(0.02)
                seen = (await gateway.rollouts.GetRollout(request, wait_for_ready=True)).rollout
    except TimeoutError:
        raise AssertionError(f"never came to {states}: {seen}") from None
    return seen


async def end_of(gateway: RunningGateway, name: str) -> rollout_pb2.Rollout:
    """Wait until a rollout has ended."""
    return await rollout_in(gateway, name, SUCCEEDED, FAILED, CANCELLED)


async def attempts_of(gateway: RunningGateway, name: str) -> list[attempt_pb2.Attempt]:
    """All attempts of a rollout."""
    request = attempt_pb2.ListAttemptsRequest(parent=f"rollouts/{name}")
    return list((await AttemptServiceStub(gateway.channel).ListAttempts(request)).attempts)


async def logs_of(gateway: RunningGateway, name: str) -> list[tuple[int, str, str]]:
    """Attempt, stream and text of every Log event."""
    events = await gateway.list_events(name, event_pb2.EVENT_VIEW_BASIC)
    return [
        (event.attempt, event.log.stream, event.log.text) for event in events if event.WhichOneof("payload") == "log"
    ]
