"""The choice among engines: sticky, balanced, and moved no more than it must."""

import random
from collections import Counter

import pytest

from gateway_svc.engines.choice import Option, Rank, choose
from gateway_svc.types import Engine

ROLLOUTS = [f"rollout-{number}" for number in range(600)]


def option(address: str, in_flight: int = 0, *, limit: int = 0, rank: Rank = Rank.READY) -> Option:
    return Option(engine=Engine(address=address), rank=rank, in_flight=in_flight, limit=limit)


def chosen(options: list[Option], affinity: str = "r", spread: float = 1.5) -> str:
    engine = choose(options, affinity, spread)
    return "" if engine is None else engine.address


def idle(*addresses: str) -> dict[str, str]:
    """Which engine each rollout has while all are idle."""
    return {rollout: chosen([option(address) for address in addresses], rollout) for rollout in ROLLOUTS}


def test_a_rollout_keeps_its_engine_and_rollouts_are_spread_over_all() -> None:
    before = idle("a", "b", "c")
    assert before == idle("c", "a", "b"), "the order is of no account"
    assert min(Counter(before.values()).values()) > len(ROLLOUTS) / 3 * 0.8


@pytest.mark.parametrize("seed", range(5))
def test_an_engine_that_comes_or_goes_moves_only_what_it_must(seed: int) -> None:
    engines = [f"engine-{number}" for number in range(random.Random(seed).randint(2, 12))]
    before, after = idle(*engines), idle(*engines, "new")
    moved = {rollout for rollout in ROLLOUTS if before[rollout] != after[rollout]}
    assert {after[rollout] for rollout in moved} == {"new"}, "coming: all that move go to the new one"
    assert 0 < len(moved) < 2 * len(ROLLOUTS) / (len(engines) + 1)
    assert {rollout for rollout in ROLLOUTS if after[rollout] == "new"} == moved, "going: only its own move"


def test_an_engine_that_is_behind_or_gone_loses_only_its_own_rollouts() -> None:
    before = idle("a", "b", "c")
    for rank in (Rank.BEHIND, Rank.UNREACHABLE):
        for rollout in ROLLOUTS:
            now = chosen([option("a"), option("b", rank=rank), option("c")], rollout)
            assert now != "b" if before[rollout] == "b" else now == before[rollout]


def test_a_rollout_leaves_an_overloaded_engine_for_the_least_loaded_one() -> None:
    own = chosen([option("a"), option("b"), option("c")])
    other, least = sorted({"a", "b", "c"} - {own})
    crowd = [option(own, 9), option(other, 5), option(least, 4)]
    assert chosen(crowd, spread=1.0) == least
    assert chosen(crowd, spread=1.5) == own, "9 of 19 is within one and a half shares"
    assert chosen([option(own, 10), option(other, 5), option(least, 4)], spread=1.5) == least


def test_the_load_of_all_stays_within_the_spread() -> None:
    loads = Counter({"a": 0, "b": 0, "c": 0})
    for _ in range(300):  # one rollout alone asks
        loads[chosen([option(address, loads[address]) for address in loads])] += 1
    assert max(loads.values()) <= 1.5 * 301 / 3 + 1


def test_a_full_engine_gets_nothing() -> None:
    assert chosen([option("a", 2, limit=2), option("b", 9, limit=10)]) == "b"
    assert chosen([option("a", 2, limit=2), option("b", 10, limit=10)]) == ""
    assert chosen([]) == ""


def test_one_that_is_behind_is_taken_only_where_no_ready_one_has_room() -> None:
    behind = option("b", rank=Rank.BEHIND)
    assert chosen([option("a", 7), behind]) == "a"
    assert chosen([option("a", 7, limit=7), behind]) == "b"


def test_one_that_does_not_answer_is_taken_only_where_there_is_no_other() -> None:
    gone = option("g", rank=Rank.UNREACHABLE)
    assert chosen([option("a", 7, limit=7), gone]) == "", "waiting is better"
    assert chosen([gone]) == "g"
