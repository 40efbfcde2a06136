"""What an engine answered, checked: every token has its id, a finite log-probability and a weight version, or it is
refused.

In: the JSON body of SGLang's `/generate`, or the parts of another engine's answer. Out: `Sampled`. ValueError says what
does not agree; nothing is ever padded.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gateway_svc import weights
from gateway_svc.types import Finish, Sampled, Span
from whippletree.tokens import pack_floats, pack_ids


def sampled(body: Any, vocabulary_size: int) -> Sampled:
    """Check and pack one answer of SGLang. Raises ValueError."""
    with expected_form():
        ids, meta = body["output_ids"], body["meta_info"]
        pairs = meta["output_token_logprobs"]
        finish, matched = _finish(meta["finish_reason"])
        named, values = [pair[1] for pair in pairs], [pair[0] for pair in pairs]
        spans = weights.spans(meta, len(ids))
    return packed(
        ids=ids,
        named=named,
        logprobs=values,
        spans=spans,
        finish=finish,
        matched=matched,
        vocabulary_size=vocabulary_size,
    )


@contextmanager
def expected_form() -> Iterator[None]:
    """ValueError where the block does not find what it looks for."""
    try:
        yield
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"the engine's answer has not the expected form ({type(error).__name__})") from error


def packed(
    *,
    ids: Sequence[int],
    named: Sequence[int],
    logprobs: Sequence[float],
    spans: tuple[Span, ...],
    finish: Finish,
    matched: str,
    vocabulary_size: int,
) -> Sampled:
    """Check and pack; `named` = the tokens that the log-probabilities say they belong to. Raises ValueError."""
    with expected_form():
        response, owners = np.array(ids, dtype=np.int64), np.array(named, dtype=np.int64)
        values = np.array(logprobs, dtype=np.float64)
    if len(values) != len(response):
        raise ValueError(f"{len(response)} tokens with {len(values)} log-probabilities")
    if not np.array_equal(owners, response):
        raise ValueError("log-probabilities belong to other tokens than the response")
    if not np.isfinite(values).all():
        raise ValueError("a log-probability is not finite")
    if response.size and (response.min() < 0 or response.max() >= vocabulary_size):
        raise ValueError("a response token lies outside the vocabulary")
    return Sampled(
        response=pack_ids(response.astype(np.int32)),
        logprobs=pack_floats(values.astype(np.float32)),
        spans=spans,
        finish=finish,
        matched_stop=matched,
    )


def _finish(reason: Mapping[str, Any]) -> tuple[Finish, str]:
    kind, matched = reason["type"], reason.get("matched")
    if kind not in tuple(Finish):
        raise ValueError(f"unknown finish reason {kind!r}")
    return Finish(kind), "" if matched is None else str(matched)
