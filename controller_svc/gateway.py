"""The controller's client of the gateway. Every call is repeated, with one request id, until the gateway has decided.

A gateway that is away, busy or broken is waited out without end: only the caller's cancellation ends a call early. What
is raised is a verdict: WrongStateError, StaleAttemptError, RolloutEndedError, NotFoundError or an error in the request.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import grpc
from whippletree.v1 import attempt_pb2, attempt_pb2_grpc, event_pb2, event_pb2_grpc, rollout_pb2, rollout_pb2_grpc

from controller_svc import convert
from controller_svc.types import Outcome, Rollout, RolloutId
from whippletree.channel import call
from whippletree.errors import RemoteError, WhippletreeError

log = logging.getLogger(__name__)

DEADLINE = 30.0
"""Seconds for one try of a call."""
SILENCE = 60.0
"""Seconds without a message, bookmarks included, after which a watch is begun again."""
PAUSE = 0.5
"""Seconds between tries where the gateway answered with a fault of its own."""
VERDICTS = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.ALREADY_EXISTS,
    }
)

T = TypeVar("T")


class Mark(Enum):
    """Points of the watch."""

    SNAPSHOT = "snapshot"
    """A snapshot begins: what it does not name is gone."""
    BOOKMARK = "bookmark"
    """Everything up to here was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """A rollout that is gone."""

    rollout: RolloutId


class Gateway:
    """Rollouts, attempts and events of all runs, as far as a controller needs them."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._rollouts = rollout_pb2_grpc.RolloutServiceStub(channel)
        self._attempts = attempt_pb2_grpc.AttemptServiceStub(channel)
        self._events = event_pb2_grpc.EventServiceStub(channel)

    async def watch(self) -> AsyncIterator[Rollout | Deleted | Mark]:
        """Every rollout, then every change, without end; at least once each. Goes on where it was after a break."""
        token = ""
        while True:
            if not token:
                yield Mark.SNAPSHOT
            stream = self._rollouts.WatchRollouts(rollout_pb2.WatchRolloutsRequest(resume_token=token))
            try:
                while True:
                    async with asyncio.timeout(SILENCE):
                        message = await stream.read()
                    if not isinstance(message, rollout_pb2.WatchRolloutsResponse):
                        break  # grpc.aio.EOF
                    yield _record(message)
                    token = message.resume_token
            except TimeoutError:
                log.warning("the watch was silent for %g s", SILENCE)
            except grpc.aio.AioRpcError as error:
                log.info("the watch broke off: %s", error.code().name)
                if error.code() == grpc.StatusCode.OUT_OF_RANGE:
                    token = ""
            finally:
                stream.cancel()
            await asyncio.sleep(PAUSE)

    async def get(self, rollout: RolloutId) -> Rollout:
        """A rollout as it is now."""
        request = rollout_pb2.GetRolloutRequest(name=convert.rollout_name(rollout))
        answer = await _decided(lambda: self._rollouts.GetRollout(request, timeout=DEADLINE, metadata=_about(rollout)))
        return convert.rollout(answer.rollout)

    async def worker(self, rollout: RolloutId, attempt: int) -> str:
        """Who runs, or ran, this attempt."""
        request = attempt_pb2.GetAttemptRequest(name=f"{convert.rollout_name(rollout)}/attempts/{attempt}")
        answer = await _decided(lambda: self._attempts.GetAttempt(request, timeout=DEADLINE, metadata=_about(rollout)))
        return answer.attempt.worker

    async def start(self, rollout: RolloutId, worker: str) -> tuple[Rollout, str]:
        """Open the next attempt: its number is that of the rollout that is returned; and its agent's token."""
        request = rollout_pb2.StartRolloutRequest(
            name=convert.rollout_name(rollout), worker=worker, request_id=str(uuid.uuid4())
        )
        answer = await _decided(
            lambda: self._rollouts.StartRollout(request, timeout=DEADLINE, metadata=_about(rollout))
        )
        return convert.rollout(answer.rollout), answer.token

    async def finish(self, rollout: RolloutId, attempt: int, outcome: Outcome, message: str) -> Rollout:
        """End an attempt."""
        request = rollout_pb2.FinishRolloutRequest(
            name=convert.rollout_name(rollout),
            attempt=attempt,
            outcome=convert.outcome(outcome),
            message=message,
            request_id=str(uuid.uuid4()),
        )
        answer = await _decided(
            lambda: self._rollouts.FinishRollout(request, timeout=DEADLINE, metadata=_about(rollout))
        )
        return convert.rollout(answer.rollout)

    async def append_log(self, rollout: RolloutId, attempt: int, stream: str, text: str) -> None:
        """Record a piece of output, at most 64 KiB."""
        request = event_pb2.AppendEventRequest(
            parent=convert.rollout_name(rollout),
            attempt=attempt,
            log=event_pb2.Log(stream=stream, text=text),
            request_id=str(uuid.uuid4()),
            may_ignore=True,
        )
        await _decided(lambda: self._events.AppendEvent(request, timeout=DEADLINE, metadata=_about(rollout)))


def _record(message: rollout_pb2.WatchRolloutsResponse) -> Rollout | Deleted | Mark:
    match message.WhichOneof("record"):
        case "rollout":
            return convert.rollout(message.rollout)
        case "deleted":
            return Deleted(rollout=convert.rollout_id(message.deleted))
        case _:
            return Mark.BOOKMARK


def _about(rollout: RolloutId) -> tuple[tuple[str, str], ...]:
    return (("whippletree-rollout", rollout),)


async def _decided(attempt: Callable[[], Awaitable[T]]) -> T:
    """The answer, or the verdict as an error, however long it takes."""
    while True:
        try:
            return await call(attempt, patience=float("inf"))
        except WhippletreeError as error:
            code = error.status if isinstance(error, RemoteError) else error.code
            if code in VERDICTS:
                raise
            log.warning("the gateway could not answer (%s); asking again", code.name)
        await asyncio.sleep(PAUSE)
