"""Observe -> decide -> act, until stopped. The decision is `reconcile.py`; here are its eyes and hands.

In: the watch, process exits, the clock. Out: calls to the gateway and to the runner. Order per attempt: StartRollout,
process, Log events, FinishRollout (the one status write), folder removed. Killed between any two of these, the next
life of the controller finds what the gateway believes and goes on from there.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from controller_svc.board import Board
from controller_svc.gateway import Deleted, Gateway, Mark
from controller_svc.pace import Pace
from controller_svc.reconcile import Action, Ask, Begin, Drop, Kill, Plan, Report, Situation, Stop, decide
from controller_svc.recorder import Recorder
from controller_svc.runner import Runner
from controller_svc.types import Attempt, Exit, Outcome, Phase, Rollout, RolloutId
from whippletree.errors import NotFoundError, WhippletreeError
from whippletree.log import about

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds and counts; see `settings.py`."""

    max_running: int
    start_rate: float
    timeout: float
    grace: float


class Controller:
    """One worker. Attempts are in `_attempts` from before StartRollout until their end is acknowledged."""

    def __init__(
        self,
        *,
        gateway: Gateway,
        runner: Runner,
        worker: str,
        limits: Limits,
        clock: Callable[[], float],
        recorder: Recorder,
    ) -> None:
        self._gateway, self._runner, self._worker, self._limits, self._clock = gateway, runner, worker, limits, clock
        self._board = Board()
        self._attempts: dict[RolloutId, Attempt] = {}
        self._workers: dict[tuple[RolloutId, int], str] = {}
        self._pace = Pace(rate=limits.start_rate, now=clock())
        self._background: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._stopping = False
        self._recorder = recorder
        recorder.looks(limits.max_running, lambda: len(self._attempts), lambda: sum(1 for _ in self._board.queued()))

    async def run(self) -> None:
        """Carry out rollouts until `stop`, and then until every attempt has ended and been reported."""
        async with asyncio.TaskGroup() as tasks:
            self._background = {tasks.create_task(self._observe())}
            while not (self._stopping and not self._attempts):
                self._wake.clear()
                plan = self._decide()
                for action in plan.actions:
                    self._act(action, tasks)
                await self._until(plan.wake_at)
            for task in tuple(self._background):
                task.cancel()

    def stop(self) -> None:
        """Take no more work and end what runs."""
        self._stopping = True
        self._wake.set()

    def exited(self, rollout: RolloutId, number: int, end: Exit) -> None:
        """The runner tells that a process has ended."""
        log.info("%s.%d exited with %d, %.3f s of processor", rollout, number, end.code, end.cpu)
        self._change(rollout, number, phase=Phase.EXITED, exit=end)

    def _decide(self) -> Plan:
        now = self._clock()
        self._workers = {key: worker for key, worker in self._workers.items() if key[0] in self._board.rollouts}
        plan = decide(
            Situation(
                rollouts=self._board.rollouts,
                queued=self._board.queued(),
                running=self._board.running.values(),
                attempts=self._attempts,
                workers=self._workers,
                worker=self._worker,
                now=now,
                max_running=self._limits.max_running,
                allowance=self._pace.allowance(now),
                stopping=self._stopping,
            )
        )
        return replace(plan, wake_at=min(plan.wake_at, self._pace.next_at(now)))

    async def _until(self, time: float) -> None:
        """Wait for a change, or for this time on the clock."""
        try:
            async with asyncio.timeout(None if time == float("inf") else max(0.0, time - self._clock())):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _observe(self) -> None:
        async for record in self._gateway.watch():
            match record:
                case Rollout():
                    self._board.watched(record)
                case Deleted():
                    self._board.deleted(record.rollout)
                case Mark.SNAPSHOT:
                    self._board.begin_snapshot()
                case Mark.BOOKMARK:
                    self._board.end_snapshot()
            self._wake.set()

    def _act(self, action: Action, tasks: asyncio.TaskGroup) -> None:
        rollout, now = action.rollout, self._clock()
        match action:
            case Begin():
                self._attempts[rollout] = Attempt(rollout=rollout)
                self._pace.take()
                tasks.create_task(self._guarded(rollout, self._begin(rollout)))
            case Ask(attempt=number):
                self._workers[rollout, number] = ""  # nobody we know, until the answer is here
                task = tasks.create_task(self._guarded(rollout, self._ask(rollout, number)))
                self._background.add(task)
                task.add_done_callback(self._background.discard)
            case Stop(cause=cause):
                attempt = self._attempts[rollout]
                self._attempts[rollout] = replace(attempt, cause=cause, kill_at=now + self._limits.grace)
                self._runner.signal(rollout, attempt.number, signal.SIGTERM)
            case Kill():
                attempt = self._attempts[rollout]
                self._attempts[rollout] = replace(attempt, kill_at=float("inf"))
                self._runner.signal(rollout, attempt.number, signal.SIGKILL)
            case Report():
                known = self._attempts.get(rollout, Attempt(rollout=rollout, number=action.attempt))
                self._attempts[rollout] = replace(known, phase=Phase.CLOSING)
                tasks.create_task(self._guarded(rollout, self._report(action)))
            case Drop():
                known = self._attempts[rollout]
                self._attempts[rollout] = replace(known, phase=Phase.CLOSING)
                tasks.create_task(self._guarded(rollout, self._close(rollout, known.number, failed=True)))

    async def _guarded(self, rollout: RolloutId, work: Coroutine[Any, Any, None]) -> None:
        """A task's root: an unforeseen failure costs this attempt, not the controller."""
        about(rollout=rollout)
        try:
            await work
        except Exception:
            log.exception("unforeseen failure")
            attempt = self._attempts.get(rollout)
            if attempt is not None and attempt.phase is not Phase.CLOSING and attempt.number:
                self._change(rollout, attempt.number, phase=Phase.EXITED, exit=Exit(lost="a fault of the controller"))
            else:
                self._forget(rollout)
        self._wake.set()

    async def _begin(self, rollout: RolloutId) -> None:
        try:
            opened, token = await self._gateway.start(rollout, self._worker)
        except WhippletreeError as verdict:
            log.info("not ours to start: %s", verdict.message)
            await self._look_again(rollout)
            self._attempts.pop(rollout, None)
            return
        self._recorder.started(opened)
        about(attempt=opened.attempt)
        self._board.answered(opened)
        timeout = opened.timeout or self._limits.timeout
        attempt = Attempt(rollout=rollout, number=opened.attempt, phase=Phase.LAUNCHING, timeout=timeout)
        self._attempts[rollout] = attempt
        stopped = Exit(lost="the controller was stopped")
        end = stopped if self._stopping else await self._runner.launch(opened, opened.attempt, token)
        if end is not None:
            self._change(rollout, opened.attempt, phase=Phase.EXITED, exit=end)
        elif self._attempts[rollout].phase is Phase.LAUNCHING:  # it may have ended already
            self._change(rollout, opened.attempt, phase=Phase.RUNNING, deadline=self._clock() + timeout)

    async def _ask(self, rollout: RolloutId, number: int) -> None:
        try:
            self._workers[rollout, number] = await self._gateway.worker(rollout, number)
        except NotFoundError:
            await self._look_again(rollout)

    async def _report(self, report: Report) -> None:
        rollout, number, message = report.rollout, report.attempt, report.message
        about(attempt=number)
        output = self._runner.output(rollout, number)
        try:
            for stream, text in output.items():
                await self._gateway.append_log(rollout, number, stream, text)
        except WhippletreeError as verdict:
            log.info("output not recorded: %s", verdict.message)
        if report.outcome is Outcome.FAILED and (last := last_line(output.get("stderr", ""))):
            message = f"{message}: {last}"
        try:
            self._board.answered(await self._gateway.finish(rollout, number, report.outcome, message))
            self._recorder.ended(rollout, report.outcome)
        except WhippletreeError as verdict:
            log.info("end not taken: %s", verdict.message)
            await self._look_again(rollout)
        await self._close(rollout, number, failed=report.outcome is not Outcome.SUCCEEDED)

    async def _close(self, rollout: RolloutId, number: int, *, failed: bool) -> None:
        await self._runner.remove(rollout, number, failed=failed)
        self._forget(rollout)

    def _forget(self, rollout: RolloutId) -> None:
        attempt = self._attempts.pop(rollout, None)
        self._recorder.closed(rollout, attempt.exit if attempt else None)

    async def _look_again(self, rollout: RolloutId) -> None:
        """The gateway sees a rollout otherwise than the board: take its view."""
        try:
            self._board.answered(await self._gateway.get(rollout))
        except NotFoundError:
            self._board.deleted(rollout)

    def _change(self, rollout: RolloutId, number: int, **fields: Any) -> None:
        """Change what is known of an attempt, unless it is being closed or another one by now."""
        attempt = self._attempts.get(rollout)
        if attempt is not None and attempt.number == number and attempt.phase is not Phase.CLOSING:
            self._attempts[rollout] = replace(attempt, **fields)
            self._wake.set()


def last_line(text: str, limit: int = 500) -> str:
    """The last line that is not blank, at most `limit` characters."""
    lines = text.rstrip().rsplit("\n", 1)
    return lines[-1].strip()[:limit]
