"""The driver's end of the ranks: one ordered stream of commands to each, and their results. No wire, no processes.

Order of one command: numbered, put in every rank's bounded queue together with the micro-batches of its data-parallel
position, read by the ranks, reported by each; `execute` returns when all have. One command at a time.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field

from trainer_svc.commands import Command, EndOfBatches, Failed, Result, Stop
from trainer_svc.microbatch import MicroBatch
from whippletree import tasks
from whippletree.errors import WrongStateError

QUEUE = 8
"""Commands and micro-batches that wait for one rank at most."""
Numbered = tuple[int, Command]
"""(command id, command); micro-batches carry the id of the command that they belong to."""


class RanksError(Exception):
    """A rank failed, ended, or did not answer in time; the message is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank stands among the others."""

    rank: int
    world_size: int
    data_parallel_rank: int
    data_parallel_size: int


@dataclass(slots=True, kw_only=True)
class _Waiting:
    """The command under way."""

    number: int
    command: Command
    results: dict[int, Result] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class Backend:
    """One generation of ranks. Ranks that name another session are refused."""

    def __init__(self, session: str, world_size: int, data_parallel_size: int) -> None:
        self.session = session
        self._world_size = world_size
        self._data_parallel_size = data_parallel_size
        self._queues: dict[int, asyncio.Queue[Numbered]] = {}
        self._places: dict[int, Place] = {}
        self._all_there = asyncio.Event()
        self._waiting: _Waiting | None = None
        self._number = 0
        self._failed: asyncio.Event = asyncio.Event()
        self._failure = ""
        self._turn = asyncio.Lock()

    async def stream(self, session: str, place: Place) -> AsyncIterator[Numbered]:
        """The commands for one rank, until Stop. Raises WrongStateError for a rank that does not belong here."""
        self._check(session)
        if (place.world_size, place.data_parallel_size) != (self._world_size, self._data_parallel_size):
            raise WrongStateError(
                f"rank {place.rank} is one of {place.world_size} in {place.data_parallel_size} data-parallel positions,"
                f" not of {self._world_size} in {self._data_parallel_size}"
            )
        if place.rank in self._places:
            self.fail(f"rank {place.rank} lost its stream of commands")
            raise WrongStateError(f"rank {place.rank} has a stream already")
        self._places[place.rank] = place
        queue = self._queues.setdefault(place.rank, asyncio.Queue(QUEUE))
        if len(self._places) == self._world_size:
            self._all_there.set()
        while True:
            numbered = await queue.get()
            yield numbered
            if isinstance(numbered[1], Stop):
                return

    def waiting_for(self, command_id: int) -> Command | None:
        """The command of this id while it waits for results."""
        if self._waiting is None or self._waiting.number != command_id:
            return None
        return self._waiting.command

    def report(self, session: str, command_id: int, rank: int, result: Result) -> None:
        """Take a rank's result; repeats and results of earlier commands are ignored."""
        self._check(session)
        if isinstance(result, Failed):
            self.fail(f"rank {rank}: {result.message}")
        elif self._waiting is not None and self._waiting.number == command_id:
            self._waiting.results.setdefault(rank, result)
            if len(self._waiting.results) == self._world_size:
                self._waiting.complete.set()

    def fail(self, message: str) -> None:
        """End this generation: what waits, and what is asked later, raises RanksError. The first reason stays."""
        self._failure = self._failure or message
        self._failed.set()

    @property
    def failure(self) -> str:
        """Why it ended; empty while it lives."""
        return self._failure

    async def connected(self, patience: float) -> None:
        """Wait until every rank has its stream. Raises RanksError."""
        await self._until(self._all_there.wait(), patience, "the ranks did not all connect")

    async def execute(
        self, command: Command, batches: Sequence[Sequence[MicroBatch]] | None = None, *, patience: float
    ) -> Mapping[int, Result]:
        """Have every rank carry out `command`; each one's result. `batches[d]` go to data-parallel position d.

        Raises RanksError where a rank fails, or not all have answered after `patience` seconds.
        """
        async with self._turn:
            self._number += 1
            self._waiting = waiting = _Waiting(number=self._number, command=command)
            try:
                await self._until(self._deliver(waiting, command, batches), patience, f"no answer to {command!r:.80}")
            finally:
                self._waiting = None
            return waiting.results

    async def stop(self) -> None:
        """Tell every rank that is there to end; its queue must have room, else its process is ended from outside."""
        self._number += 1
        for queue in self._queues.values():
            if not queue.full():
                queue.put_nowait((self._number, Stop()))

    async def _deliver(
        self, waiting: _Waiting, command: Command, batches: Sequence[Sequence[MicroBatch]] | None
    ) -> None:
        async with asyncio.TaskGroup() as group:
            for rank, place in self._places.items():
                own = None if batches is None else batches[place.data_parallel_rank]
                group.create_task(self._put(self._queues[rank], waiting.number, command, own))
        await waiting.complete.wait()

    async def _put(
        self, queue: asyncio.Queue[Numbered], number: int, command: Command, batches: Sequence[MicroBatch] | None
    ) -> None:
        await queue.put((number, command))
        if batches is not None:
            for batch in batches:
                await queue.put((number, batch))
            await queue.put((number, EndOfBatches(micro_batch_count=len(batches))))

    async def _until(self, work: Coroutine[object, object, object], patience: float, message: str) -> None:
        """Await `work`, a failure or the end of patience (seconds), whichever is first."""
        task, failed = asyncio.ensure_future(work), asyncio.ensure_future(self._failed.wait())
        try:
            await asyncio.wait({task, failed}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if self._failure:
                raise RanksError(self._failure)
            if not task.done():
                raise RanksError(f"{message} within {patience:.0f} s")
            task.result()
        finally:
            await tasks.end(task, failed)

    def _check(self, session: str) -> None:
        if not hmac.compare_digest(session.encode(), self.session.encode()):
            raise WrongStateError("this session of ranks has ended")
