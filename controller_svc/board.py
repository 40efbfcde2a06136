"""The rollouts as the controller sees them: fed by the watch and by answers of its own calls, never going back.

A rollout that ended is kept only until the watch has shown its end too: an older message may still be on its way.
"""

from collections.abc import Mapping
from types import MappingProxyType

from controller_svc.types import Rollout, RolloutId


class Board:
    """Latest known revision of every rollout that has not ended."""

    def __init__(self) -> None:
        self._rollouts: dict[RolloutId, Rollout] = {}
        self._unseen: set[RolloutId] | None = None

    @property
    def rollouts(self) -> Mapping[RolloutId, Rollout]:
        """By id, in the order in which they were first seen; with a few that have ended."""
        return MappingProxyType(self._rollouts)

    def watched(self, rollout: Rollout) -> None:
        """The watch shows this revision."""
        if self._unseen is not None:
            self._unseen.discard(rollout.id)
        known = self._rollouts.get(rollout.id)
        if known is not None and rollout.revision < known.revision:
            return
        if rollout.state.final:
            self._rollouts.pop(rollout.id, None)
        else:
            self._rollouts[rollout.id] = rollout

    def answered(self, rollout: Rollout) -> None:
        """A call of ours was answered with this revision."""
        known = self._rollouts.get(rollout.id)
        if known is None or rollout.revision > known.revision:
            self._rollouts[rollout.id] = rollout

    def deleted(self, rollout: RolloutId) -> None:
        """The rollout is gone."""
        self._rollouts.pop(rollout, None)

    def begin_snapshot(self) -> None:
        """The watch starts again with a snapshot: what it does not name is gone."""
        self._unseen = set(self._rollouts)

    def end_snapshot(self) -> None:
        """The snapshot is complete."""
        for rollout in self._unseen or ():
            self._rollouts.pop(rollout, None)
        self._unseen = None
