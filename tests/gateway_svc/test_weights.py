"""Spans of weight versions from an engine's meta."""

from typing import Any

import pytest

from gateway_svc.types import Span
from gateway_svc.weights import agree, spans


def coded(*parts: tuple[str, int, int]) -> dict[str, Any]:
    return {"weight_versions": [{"version": name, "start": start, "end": end} for name, start, end in parts]}


def test_spans_are_taken_in_order() -> None:
    found = spans(coded(("v1", 0, 2), ("v2", 2, 5)), 5)
    assert found == (Span(weight_version="v1", start=0, end=2), Span(weight_version="v2", start=2, end=5))


def test_neighbours_of_one_version_are_merged_and_empty_ones_dropped() -> None:
    found = spans(coded(("v1", 0, 2), ("v1", 2, 3), ("v2", 3, 3)), 3)
    assert found == (Span(weight_version="v1", start=0, end=3),)


def test_one_label_covers_the_whole_response() -> None:
    assert spans({"weight_version": "v1"}, 4) == (Span(weight_version="v1", start=0, end=4),)


def test_an_empty_response_has_no_spans() -> None:
    assert spans({}, 0) == ()


@pytest.mark.parametrize(
    "meta",
    [coded(("v1", 0, 2), ("v2", 3, 5)), coded(("v1", 0, 4)), coded(("v1", 0, 6)), coded(("v1", 1, 5)), {}],
    ids=["gap", "short", "long", "late", "no label"],
)
def test_spans_that_do_not_cover_the_response_are_refused(meta: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"span|version"):
        spans(meta, 5)


def test_an_empty_expectation_agrees_with_any_weights() -> None:
    found = (Span(weight_version="v1", start=0, end=2),)
    assert agree(found, "")
    assert agree(found, "v1")
    assert not agree(found, "v2")
