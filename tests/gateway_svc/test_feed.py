"""The watch of rollouts where its store does not answer for a while."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from gateway_svc.feed import Bookmark, Feed
from gateway_svc.rollouts import Filter
from gateway_svc.store import Store
from gateway_svc.types import Micros, Rollout
from tests.fakes.gateway import record_of, running_gateway
from whippletree.errors import ShuttingDownError

DATABASES = ("postgresql",)


class SometimesAway:
    """A store whose database does not answer queries while `away`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.away, self.asked = False, asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, query: Callable[[Any], Any]) -> Any:
        if self.away:
            self.asked.set()
            raise ShuttingDownError("the store does not answer")
        return await self._store.read(query)


async def test_watchers_are_told_again_after_the_store_was_away(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.create_run("r")
        store = await Store.open(
            record_of(tmp_path), synchronous="NORMAL", capacity=10, readers=1, clock=lambda: Micros(0)
        )
        away = SometimesAway(store)
        feed = Feed(cast(Store, away), quiet=3600)
        watch = feed.watch(Filter(), 0)
        assert isinstance(await anext(watch), Bookmark)
        following = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        away.away = True
        await gateway.create_rollout("a", start=False)
        async with asyncio.timeout(60):
            await away.asked.wait()
            away.away = False
            found = await following
        assert isinstance(found, Rollout)
        assert found.spec.rollout_id == "a"
        feed.close()
        with pytest.raises(ShuttingDownError):
            await anext(watch)
        await store.close()
