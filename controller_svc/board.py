"""The rollouts as the controller sees them: fed by the watch and by answers of its own calls, never going back.

A rollout that ended is kept only until the watch has shown its end too: an older message may still be on its way.
"""

import bisect
import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from controller_svc.types import Rollout, RolloutId, State


class Board:
    """Latest known revision of every rollout that has not ended, with the queued and the running ones at hand."""

    def __init__(self) -> None:
        self._rollouts: dict[RolloutId, Rollout] = {}
        self._places: dict[RolloutId, tuple[int, int]] = {}
        self._arrivals = itertools.count()
        self._queue: list[tuple[tuple[int, int], RolloutId]] = []
        self._running: dict[RolloutId, Rollout] = {}
        self._unseen: set[RolloutId] | None = None

    @property
    def rollouts(self) -> Mapping[RolloutId, Rollout]:
        """All, with a few that have ended."""
        return MappingProxyType(self._rollouts)

    @property
    def running(self) -> Mapping[RolloutId, Rollout]:
        """Those in state RUNNING, whoever runs them."""
        return MappingProxyType(self._running)

    def queued(self) -> Iterator[Rollout]:
        """Those in state QUEUED, in the order of creation, then of arrival. Not for use across a change."""
        return (self._rollouts[rollout] for _, rollout in self._queue)

    def watched(self, rollout: Rollout) -> None:
        """The watch shows this revision."""
        if self._unseen is not None:
            self._unseen.discard(rollout.id)
        known = self._rollouts.get(rollout.id)
        if known is not None and rollout.revision < known.revision:
            return
        if rollout.state.final:
            self.deleted(rollout.id)
        else:
            self._put(rollout)

    def answered(self, rollout: Rollout) -> None:
        """A call of ours was answered with this revision."""
        known = self._rollouts.get(rollout.id)
        if known is None or rollout.revision > known.revision:
            self._put(rollout)

    def deleted(self, rollout: RolloutId) -> None:
        """The rollout is gone."""
        self._lift(rollout)
        self._rollouts.pop(rollout, None)
        self._places.pop(rollout, None)

    def begin_snapshot(self) -> None:
        """The watch starts again with a snapshot: what it does not name is gone."""
        self._unseen = set(self._rollouts)

    def end_snapshot(self) -> None:
        """The snapshot is complete."""
        for rollout in self._unseen or ():
            self.deleted(rollout)
        self._unseen = None

    def _put(self, rollout: Rollout) -> None:
        self._lift(rollout.id)
        self._rollouts[rollout.id] = rollout
        if rollout.id not in self._places:
            self._places[rollout.id] = (rollout.created, next(self._arrivals))
        if rollout.state is State.QUEUED:
            bisect.insort(self._queue, (self._places[rollout.id], rollout.id))
        elif rollout.state is State.RUNNING:
            self._running[rollout.id] = rollout

    def _lift(self, rollout: RolloutId) -> None:
        """Take it out of the queue, or of those that run."""
        known = self._rollouts.get(rollout)
        self._running.pop(rollout, None)
        if known is not None and known.state is State.QUEUED:
            del self._queue[bisect.bisect_left(self._queue, (self._places[rollout], rollout))]
