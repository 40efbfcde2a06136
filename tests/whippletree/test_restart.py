"""When a part is started again."""

import pytest

from whippletree.cli.restart import Again, GiveUp, RestartPolicy, decide

POLICY = RestartPolicy(first_delay=1.0, max_delay=5.0, long_life=30.0, max_quick_deaths=5)


@pytest.mark.parametrize(
    ("lifetimes", "expected"),
    [
        pytest.param([100.0], Again(delay=1.0), id="a long life starts again soon"),
        pytest.param([2.0], Again(delay=1.0), id="the first quick death too"),
        pytest.param([2.0, 2.0, 2.0], Again(delay=4.0), id="quick deaths double the delay"),
        pytest.param([2.0] * 4, Again(delay=5.0), id="up to the longest delay"),
        pytest.param([2.0] * 5, GiveUp(deaths=5), id="too many quick deaths are the last"),
        pytest.param([2.0] * 4 + [31.0], Again(delay=1.0), id="a long life starts the count over"),
        pytest.param([40.0, 2.0, 2.0], Again(delay=4.0), id="quick deaths after a long life count on"),
    ],
)
def test_decision(lifetimes: list[float], expected: Again | GiveUp) -> None:
    assert decide(lifetimes, POLICY) == expected
