"""The creation rate."""

from controller_svc.pace import Pace


def test_a_burst_is_a_second_s_worth_and_then_the_rate_holds() -> None:
    pace = Pace(rate=10.0, now=0.0)
    assert pace.allowance(0.0) == 10
    for _ in range(10):
        pace.take()
    assert pace.allowance(0.0) == 0
    assert pace.next_at(0.0) == 0.1
    assert pace.allowance(0.55) == 5


def test_a_long_rest_saves_up_no_more_than_a_second() -> None:
    assert Pace(rate=10.0, now=0.0).allowance(1000.0) == 10


def test_a_rate_below_one_still_begins() -> None:
    pace = Pace(rate=0.5, now=0.0)
    assert pace.allowance(0.0) == 1
    pace.take()
    assert pace.next_at(0.0) == 2.0
    assert pace.allowance(2.0) == 1
    assert pace.next_at(2.0) == float("inf")
