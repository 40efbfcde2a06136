"""How long a generation that was left by all waits for a retry."""

import pytest

from gateway_svc.flights import LONGEST_GRACE, patience


@pytest.mark.parametrize(
    ("retries", "seconds"), [(0, 0.5), (1, 1.0), (2, 2.0), (9, LONGEST_GRACE), (5000, LONGEST_GRACE)]
)
def test_each_retry_that_came_doubles_the_time_for_the_next(retries: int, seconds: float) -> None:
    assert patience(0.5, retries) == seconds


def test_a_long_grace_is_not_cut() -> None:
    assert patience(60, 0) == patience(60, 3) == 60


def test_no_grace_stays_none() -> None:
    assert patience(0, 3) == 0
