"""Rollouts asked for -> finished: declares them, watches their ends, and builds samples while others still run.

The bridge reports a delivered reply after its last byte, so the report on an agent's last call may follow the end of
its rollout. A rollout that wants such a report is put off and read again when all others are there.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from trainer_svc import forest, ids
from trainer_svc.config import AgentSection
from trainer_svc.gateway import Gateway
from trainer_svc.step import Finished
from trainer_svc.types import Record, RolloutId, RolloutSpec, RunId, Split, State, Status

log = logging.getLogger(__name__)

PAUSES = (0.1, 0.2, 0.4, 0.8, 1.5, 2.0)
"""Seconds between two looks for reports that are missing; after the last look the calls are left out."""


class Board:
    """Where the run's rollouts stand. Statuses may come twice and late: an end is final."""

    def __init__(self) -> None:
        self._statuses: dict[RolloutId, Status] = {}
        self._changed = asyncio.Condition()

    async def put(self, status: Status) -> None:
        """Note one status."""
        known = self._statuses.get(status.rollout_id)
        if known is not None and known.state.ended:
            return
        async with self._changed:
            self._statuses[status.rollout_id] = status
            self._changed.notify_all()

    async def follow(self, statuses: AsyncIterator[Status]) -> None:
        """Note every status of a watch, without end."""
        async for status in statuses:
            await self.put(status)

    async def ended(self, wanted: Sequence[RolloutId]) -> AsyncIterator[list[Status]]:
        """Each of `wanted` once, as they end, some at a time."""
        left = dict.fromkeys(wanted)
        while left:
            async with self._changed:
                await self._changed.wait_for(lambda: any(self._has_ended(item) for item in left))
                found = [self._statuses[item] for item in left if self._has_ended(item)]
            for status in found:
                del left[status.rollout_id]
            yield found

    def running(self) -> list[RolloutId]:
        """All that have not ended."""
        return [rollout for rollout, status in self._statuses.items() if not status.state.ended]

    def _has_ended(self, rollout: RolloutId) -> bool:
        return rollout in self._statuses and self._statuses[rollout].state.ended


class Collector:
    """Asks for rollouts of one run and brings them back finished."""

    def __init__(
        self,
        gateway: Gateway,
        run: RunId,
        model: str,
        agent: AgentSection,
        board: Board,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._gateway = gateway
        self._pause = pause
        self._run = run
        self._model = model
        self._agent = agent
        self._board = board

    async def collect(self, specs: Sequence[RolloutSpec], seen: Callable[[Finished], None]) -> list[Finished]:
        """Run all of `specs` to their ends; in the order given, `seen` called as each ends. AgentsFailedError."""
        declared = await self._declare(specs)
        finished: dict[RolloutId, Finished] = {}
        undecided: list[Finished] = []

        def put(done: Finished) -> None:
            finished[done.spec.rollout_id] = done
            seen(done)

        async for statuses in self._board.ended(list(declared)):
            for done in await self._read(declared, statuses):
                if wants_reports(done):
                    undecided.append(done)
                else:
                    put(done)
        for done in await self._decided(declared, undecided):
            put(done)
        return alive([finished[rollout] for rollout in declared])

    async def _read(self, declared: Mapping[RolloutId, RolloutSpec], statuses: Sequence[Status]) -> list[Finished]:
        records = await self._gateway.records(statuses, self._model)
        return [
            assemble(declared[status.rollout_id], status, record)
            for status, record in zip(statuses, records, strict=True)
        ]

    async def _decided(
        self, declared: Mapping[RolloutId, RolloutSpec], undecided: Sequence[Finished]
    ) -> list[Finished]:
        """These rollouts again, when every reply was reported, or after `PAUSES`: then they are as they are."""
        found = list(undecided)
        for pause in (0.0, *PAUSES):
            missing = [index for index, done in enumerate(found) if wants_reports(done)]
            if not missing:
                return found
            await self._pause(pause)
            again = await self._read(declared, [found[index].status for index in missing])
            for index, done in zip(missing, again, strict=True):
                found[index] = done
        for done in filter(wants_reports, found):
            log.warning("%s: a reply was not reported as delivered, and is not trained", done.spec.rollout_id)
        return found

    async def _declare(self, specs: Sequence[RolloutSpec]) -> dict[RolloutId, RolloutSpec]:
        """Ask for rollouts; one that was cancelled when an earlier driver was stopped is asked for under a new id."""
        declared: dict[RolloutId, RolloutSpec] = {}
        wanted = list(specs)
        while wanted:
            statuses = await self._gateway.create_rollouts(self._run, wanted, self._agent)
            again: list[RolloutSpec] = []
            for spec, status in zip(wanted, statuses, strict=True):
                if status.state is State.CANCELLED:
                    again.append(ids.replaced(spec))
                else:
                    declared[spec.rollout_id] = spec
                    await self._board.put(status)
            wanted = again
        return declared

    async def cancel_running(self) -> None:
        """Cancel whatever has not ended, as far as the gateway answers."""
        async with asyncio.TaskGroup() as group:
            for rollout in self._board.running():
                group.create_task(self._gateway.cancel(rollout, "the trainer was stopped", patience=5.0))


class AgentsFailedError(Exception):
    """Every rollout of a batch failed before its first call: the agent cannot run. The message is for people."""


def alive(finished: list[Finished]) -> list[Finished]:
    """The batch as it is. Raises AgentsFailedError where nothing of it lived."""
    if finished and all(item.status.state is State.FAILED and not item.forest.samples for item in finished):
        first = finished[0].status
        raise AgentsFailedError(
            f"all {len(finished)} rollouts failed without one call to the model, the first with: {first.message}; "
            f"what it printed is shown by `whippletree rollouts show {first.rollout_id}`"
        )
    return finished


def wants_reports(done: Finished) -> bool:
    """Whether a report that may still come would change its samples."""
    return (
        done.spec.split is Split.TRAIN and done.status.state is not State.CANCELLED and done.forest.undecided_calls > 0
    )


def assemble(spec: RolloutSpec, status: Status, record: Record) -> Finished:
    """A finished rollout with its samples."""
    grown = forest.grow(record.rollout_id, record.calls)
    return Finished(spec=spec, status=status, rewards=record.rewards, forest=grown)
