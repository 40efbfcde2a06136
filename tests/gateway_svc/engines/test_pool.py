"""The choice among engines."""

from gateway_svc.engines.pool import choose

NONE: frozenset[str] = frozenset()


def test_the_least_loaded_engine_is_chosen() -> None:
    assert choose(["a", "b"], {"a": 2, "b": 1}, NONE, "r") == "b"


def test_of_equals_a_rollout_keeps_its_engine() -> None:
    engines = ["a", "b", "c"]
    assert len({choose(engines, {}, NONE, "r1") for _ in range(3)}) == 1
    assert {choose(engines, {}, NONE, f"r{number}") for number in range(50)} == set(engines)


def test_an_engine_that_failed_is_avoided_while_another_is_left() -> None:
    assert choose(["a", "b"], {"b": 9}, frozenset({"a"}), "r") == "b"
    assert choose(["a"], {}, frozenset({"a"}), "r") == "a"
