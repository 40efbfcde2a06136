"""Which models a rollout may call: its run's policy, and every auxiliary model.

A rollout's run and a run's policy are kept: they change only where one was deleted and made anew. The list of models is
believed for `age` seconds. All are asked again where a name is not found.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from openai_bridge.gateway import Gateway
from openai_bridge.types import Model
from whippletree.errors import NotFoundError

KEPT = 100_000
"""Rollouts remembered."""


class Models:
    """Answers by rollout. Invariant: a model of another run's policy is never given."""

    def __init__(self, gateway: Gateway, *, age: float, clock: Callable[[], float]) -> None:
        """`age`: seconds on `clock`."""
        self._gateway, self._age, self._clock = gateway, age, clock
        self._runs: OrderedDict[str, str] = OrderedDict()
        self._policies: OrderedDict[str, str] = OrderedDict()
        self._listed: tuple[list[Model], list[Model]] = ([], [])
        self._listed_at = float("-inf")
        self._refresh = asyncio.Lock()

    async def allowed(self, rollout: str) -> list[Model]:
        """Policy first. NotFoundError where there is no such rollout."""
        policy = await self._policy(rollout)
        policies, auxiliaries = await self._list(since=self._clock() - self._age)
        return [model for model in policies if model.name == policy] + auxiliaries

    async def find(self, rollout: str, name: str) -> Model:
        """The model of a name. NotFoundError that names what there is."""
        if (known := self._known(rollout, name)) is not None:
            return known
        found = _named(await self.allowed(rollout), name)
        if found is None:
            self._forget(rollout)
            await self._list(since=self._clock())
            found = _named(allowed := await self.allowed(rollout), name)
        if found is None:
            there = ", ".join(f"'{model.name}'" for model in allowed) or "none at all"
            raise NotFoundError(
                f"The model '{name}' does not exist. Models: {there}.", name=f"models/{name}", field="model"
            )
        return found

    def _known(self, rollout: str, name: str) -> Model | None:
        """The rollout's policy, where it has this name and nothing need be asked."""
        if name != self._policies.get(self._runs.get(rollout, "")) or self._listed_at < self._clock() - self._age:
            return None
        return _named(self._listed[0], name)

    def _forget(self, rollout: str) -> None:
        self._policies.pop(self._runs.pop(rollout, ""), None)

    async def _policy(self, rollout: str) -> str:
        run = await _kept(self._runs, rollout, self._gateway.run_of)
        return await _kept(self._policies, run, self._gateway.policy_of)

    async def _list(self, *, since: float) -> tuple[list[Model], list[Model]]:
        """The list, asked no earlier than `since`; callers who wait together share one answer."""
        if self._listed_at < since:
            async with self._refresh:
                if self._listed_at < since:
                    asked_at = self._clock()
                    self._listed = await self._gateway.models()
                    self._listed_at = asked_at
        return self._listed


def _named(models: list[Model], name: str) -> Model | None:
    return next((model for model in models if model.name == name), None)


async def _kept(kept: OrderedDict[str, str], key: str, ask: Callable[[str], Awaitable[str]]) -> str:
    if key not in kept:
        kept[key] = await ask(key)
        if len(kept) > KEPT:
            kept.popitem(last=False)
    return kept[key]
