import pytest

from whippletree.errors import FACT_LIMIT, MESSAGE_LIMIT, InvalidFieldError, clipped


@pytest.mark.parametrize("text", ["x" * 5000, "é" * 5000, "😀" * 5000, "a\ud800" * 3000])
def test_what_a_caller_sent_cannot_make_an_error_too_long_for_a_header(text: str) -> None:
    error = InvalidFieldError(text, name=text)
    assert len(error.message.encode()) <= MESSAGE_LIMIT
    assert len(error.metadata["name"].encode()) <= FACT_LIMIT
    assert len(error.to_status().SerializeToString()) < 2000


def test_short_texts_stay_as_they_are() -> None:
    assert clipped("ok", 2) == "ok"
    assert clipped("é" * 10, 20) == "é" * 10
