"""A store without room: what is known of it, and when it is over.

In: failed writes, told by the store. Out: health of `whippletree.v1.write`, which is NOT_SERVING while nothing can be
written. Reads go on, and every write is still tried, so one that fits is taken; but nothing is sampled that could not
be recorded. A probe of its own says when there is room again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from sqlalchemy import update
from sqlalchemy.exc import DBAPIError

from gateway_svc import facts, schema
from gateway_svc.store import Store, Transaction
from gateway_svc.wake import Wake
from whippletree.errors import WhippletreeError

log = logging.getLogger(__name__)

WRITE = "whippletree.v1.write"
"""Name of the health that says whether the record can be written."""
PROBE = "x" * (64 << 10)
"""What must fit before the store counts as writable again."""


class RoomKeeper:
    """Sets the health by `tell(writable)`, while `run` runs. `pause` = seconds between two probes."""

    def __init__(self, store: Store, tell: Callable[[bool], Awaitable[None]], *, pause: float) -> None:
        self._store, self._tell, self._pause = store, tell, pause
        self._full, self._wake = False, Wake()
        store.on_full(self._filled)

    async def run(self) -> None:
        """Without end."""
        await self._tell(True)
        while True:
            await self._wake.until(lambda: self._full)
            log.error("the store has no room: reads go on, writes are refused until there is some")
            await self._tell(False)
            while self._full:
                await asyncio.sleep(self._pause)
                self._full = not await self._has_room()
            self._store.has_room()
            log.warning("the store has room again")
            await self._tell(True)

    async def _has_room(self) -> bool:
        try:
            await self._store.write(_probe)
            await self._store.write(_tidy)
        except (WhippletreeError, DBAPIError):
            return False
        return True

    def _filled(self) -> None:
        self._full = True
        self._wake.fire()


def _probe(tx: Transaction) -> None:
    facts.put(tx, "probe", tx.now, PROBE)


def _tidy(tx: Transaction) -> None:
    tx.connection.execute(update(schema.facts).where(schema.facts.c.name == "probe").values(text=""))
