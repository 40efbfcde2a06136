"""The public keys that verify tokens, as the gateway has them: read now and then, and where a token names a new one."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from whippletree import tasks
from whippletree.errors import WhippletreeError

log = logging.getLogger(__name__)

AGE = 30.0
"""Seconds for which a set is believed."""
PAUSE = 1.0
"""Seconds between two looks at least: a caller can name unknown keys as often as it likes."""


class KeySet:
    """`PublicKeys` of the bridge. While the gateway is away the last set holds."""

    def __init__(
        self, read: Callable[[], Awaitable[Mapping[str, Ed25519PublicKey]]], clock: Callable[[], float]
    ) -> None:
        """`clock`: seconds."""
        self._read, self._clock = read, clock
        self._keys: Mapping[str, Ed25519PublicKey] = {}
        self._looked = float("-inf")
        self._lock = asyncio.Lock()

    def find(self, kid: str) -> Ed25519PublicKey | None:
        """The key of an id, as the last set has it."""
        return self._keys.get(kid)

    async def refresh(self) -> None:
        """Read the set, unless that was done a moment ago; who waits together shares one answer.

        WhippletreeError where there is none yet and the gateway does not give it.
        """
        asked = self._clock()
        async with self._lock:
            if self._looked >= asked or self._clock() - self._looked < PAUSE:
                return
            try:
                self._keys = await self._read()
            except WhippletreeError:
                if not self._keys:
                    raise
            self._looked = self._clock()

    @contextlib.asynccontextmanager
    async def followed(self) -> AsyncIterator["KeySet"]:
        """Read it again and again while the block runs."""
        task = asyncio.create_task(self._follow())
        try:
            yield self
        finally:
            await tasks.end(task)

    async def _follow(self) -> None:
        while True:
            try:
                await self.refresh()
            except WhippletreeError as error:
                log.warning("the gateway's keys are not known yet: %s", error)
            await asyncio.sleep(AGE if self._keys else PAUSE)
