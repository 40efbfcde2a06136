"""Carries deletions of runs to their end: those that are asked for, those that a stop cut, and those of old runs.

In: DeleteRun, the start, the clock. Out: steps given to the store one after another; between two of them others write.
"""

import asyncio
import logging
from functools import partial

from gateway_svc import deletion, facts, requests
from gateway_svc.catalog import Catalog
from gateway_svc.phase import Gates
from gateway_svc.store import Store
from gateway_svc.types import Micros, Once, RunId
from whippletree import tasks
from whippletree.errors import StoreFullError, WrongStateError

log = logging.getLogger(__name__)


class Deleter:
    """One task per run that is being deleted; `close` cuts them, and the next start goes on."""

    def __init__(self, store: Store, catalog: Catalog, gates: Gates) -> None:
        self._store, self._catalog, self._gates = store, catalog, gates
        self._tasks: dict[RunId, asyncio.Task[int]] = {}

    async def delete(self, run_id: RunId, force: bool, once: Once | None) -> int:
        """Delete a run; how many rollouts it had. Raises WrongStateError, NotFoundError."""
        answer = await self._store.write(partial(deletion.begin, run_id=run_id, force=force, once=once))
        if answer is not None:
            return int(answer)
        return await asyncio.shield(self._task(run_id, once))

    async def resume(self) -> None:
        """Go on with what was cut."""
        for run_id in await self._store.read(deletion.unfinished):
            self._task(run_id, None)

    async def remove_outlived(self, age: Micros, now: Micros) -> None:
        """Delete ended runs in which nothing happened for `age`."""
        for run_id in await self._store.read(partial(deletion.outlived, before=Micros(now - age))):
            log.info("runs/%s ended long ago and is deleted", run_id)
            try:
                await self.delete(run_id, False, None)
            except WrongStateError:
                log.info("runs/%s has begun again and is kept", run_id)

    async def forget(self) -> None:
        """Forget request ids and deletions that are older than a day."""
        await self._store.write(requests.forget)
        await self._store.write(partial(facts.forget_deletions, age=requests.KEPT))

    async def close(self) -> None:
        """Cut what runs."""
        await tasks.end(*self._tasks.values())

    def _task(self, run_id: RunId, once: Once | None) -> "asyncio.Task[int]":
        if (task := self._tasks.get(run_id)) is None:
            task = self._tasks[run_id] = asyncio.create_task(self._carry_out(run_id, once))
            task.add_done_callback(partial(self._ended, run_id))
        return task

    def _ended(self, run_id: RunId, task: "asyncio.Task[int]") -> None:
        del self._tasks[run_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("deleting runs/%s: %s; the next start goes on", run_id, error)

    async def _carry_out(self, run_id: RunId, once: Once | None) -> int:
        self._catalog.forget_run(run_id)
        self._gates.open(f"runs/{run_id}")  # what is held finds that its rollout is gone
        while await self._step(run_id):
            pass
        count = await self._store.write(partial(deletion.end, run_id=run_id, once=once))
        log.info("runs/%s is deleted, %d rollouts", run_id, count)
        return count

    async def _step(self, run_id: RunId) -> bool:
        """One step; False = all is done. A store without room is waited for: removing rows takes some too."""
        try:
            return await self._store.write(partial(deletion.step, run_id=run_id))
        except StoreFullError as error:
            await asyncio.sleep(error.retry_after or 1.0)
            return True
