"""The board never goes backwards and forgets what has ended."""

from controller_svc.board import Board
from controller_svc.types import Rollout, State
from tests.fakes.processes import command, rollout


def seen(revision: int, state: State, name: str = "a", created: int = 0) -> Rollout:
    return rollout(name, command("true"), revision=revision, state=state, created=created)


def test_an_older_revision_changes_nothing() -> None:
    board = Board()
    board.answered(seen(3, State.RUNNING))
    board.watched(seen(2, State.QUEUED))
    assert board.rollouts["a"].state is State.RUNNING  # type: ignore[index]


def test_an_end_that_a_call_answered_is_kept_until_the_watch_shows_it() -> None:
    board = Board()
    board.answered(seen(4, State.SUCCEEDED))
    board.watched(seen(3, State.RUNNING))
    assert [item.state for item in board.rollouts.values()] == [State.SUCCEEDED]
    board.watched(seen(4, State.SUCCEEDED))
    assert not board.rollouts


def test_the_queue_is_in_the_order_of_creation_and_what_comes_back_keeps_its_place() -> None:
    board = Board()
    for name, created in (("c", 2), ("b", 2), ("a", 1)):
        board.watched(seen(1, State.QUEUED, name, created=created))
    board.answered(seen(2, State.RUNNING, "a", created=1))
    assert ([item.id for item in board.queued()], list(board.running)) == (["c", "b"], ["a"])
    board.watched(seen(3, State.QUEUED, "a", created=1))
    assert ([item.id for item in board.queued()], list(board.running)) == (["a", "c", "b"], [])


def test_a_snapshot_removes_what_it_does_not_name() -> None:
    board = Board()
    board.watched(seen(1, State.QUEUED, "gone"))
    board.watched(seen(1, State.QUEUED, "stays"))
    board.begin_snapshot()
    board.watched(seen(1, State.QUEUED, "stays"))
    board.watched(seen(1, State.QUEUED, "new"))
    assert set(board.rollouts) == {"gone", "stays", "new"}
    board.end_snapshot()
    assert set(board.rollouts) == {"stays", "new"}


def test_a_deleted_rollout_is_gone() -> None:
    board = Board()
    board.watched(seen(1, State.QUEUED))
    board.deleted(seen(1, State.QUEUED).id)
    assert not board.rollouts
