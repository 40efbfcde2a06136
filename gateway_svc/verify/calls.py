"""Model calls: every call is expanded through its parents, and its tokens must give the digest stored with it."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import orjson
from sqlalchemy import Connection, Row, select

from gateway_svc import prefix
from gateway_svc.schema import calls, rollouts
from gateway_svc.verify.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole:
    """An expanded call: packed prompt + response."""

    call_id: str
    attempt: int
    tokens: bytes
    prompt_count: int


def check(connection: Connection, report: Report) -> None:
    """Look at every call, one rollout in memory at a time."""
    query = select(calls, rollouts.c.rollout_id).join(rollouts, rollouts.c.ordinal == calls.c.rollout, isouter=True)
    query = query.order_by(calls.c.rollout, calls.c.sequence).execution_options(yield_per=100)
    for _, group in groupby(connection.execute(query), key=lambda row: row.rollout):
        seen: dict[int, _Whole] = {}
        for row in group:
            _check_call(row, seen, report)


def _check_call(row: Row[Any], seen: dict[int, _Whole], report: Report) -> None:
    where = f"rollouts/{row.rollout_id}/events/{row.sequence}"
    report.count("calls")
    report.count("tokens of prompts", row.prompt_count)
    report.count("tokens of prompts as stored", len(row.suffix) // 4)
    report.count("tokens of responses", row.response_count)
    before = _shared(row, where, seen, report)
    prompt = before + row.suffix
    seen[row.sequence] = _Whole(
        call_id=row.call_id, attempt=row.attempt, tokens=prompt + row.response, prompt_count=row.prompt_count
    )
    if len(prompt) != 4 * row.prompt_count:
        report.fault(where, f"its prompt has {len(prompt) / 4:g} tokens instead of {row.prompt_count}")
    if len(row.response) != 4 * row.response_count or len(row.logprobs) != 4 * row.response_count:
        given = f"{len(row.response) / 4:g} tokens and {len(row.logprobs) / 4:g} log-probabilities"
        report.fault(where, f"its response has {given} instead of {row.response_count}")
    if row.length != row.prompt_count + row.response_count:
        report.fault(where, f"its length {row.length} is not {row.prompt_count} + {row.response_count}")
    if prefix.digest(prompt, row.response) != row.digest:
        report.fault(where, "its tokens do not give its digest")
    _check_head(row, where, report)


def _shared(row: Row[Any], where: str, seen: Mapping[int, _Whole], report: Report) -> bytes:
    """What the call shares with its parent; empty where there is none."""
    if row.parent is None:
        if row.shared or row.parent_call_id:
            report.fault(where, f"shares {row.shared} tokens with a parent {row.parent_call_id} that it does not name")
        return b""
    parent = seen.get(row.parent)
    if parent is None:
        report.fault(where, f"its parent {row.parent} is no earlier call of its rollout")
        return b""
    if parent.call_id != row.parent_call_id or parent.attempt != row.attempt:
        report.fault(where, f"its parent {row.parent} is call {parent.call_id} of attempt {parent.attempt}")
    if row.shared not in (len(parent.tokens) // 4, parent.prompt_count):
        sizes = f"{parent.prompt_count} in its prompt and {len(parent.tokens) // 4} in all"
        report.fault(where, f"shares {row.shared} tokens with its parent, which has {sizes}")
    return parent.tokens[: 4 * row.shared]


def _check_head(row: Row[Any], where: str, report: Report) -> None:
    try:
        head = orjson.loads(row.head)
        spans = [(span["start"], span["end"]) for span in head["spans"]]
    except (ValueError, KeyError, TypeError):
        report.fault(where, "what is stored beside its tokens cannot be read")
        return
    edges = [0, *(end for _, end in spans)]
    if [start for start, _ in spans] != edges[:-1] or edges[-1] != row.response_count:
        report.fault(where, f"its weight versions cover {spans} of {row.response_count} tokens")
    if head.get("checksum") not in (None, zlib.crc32(row.logprobs)):  # recorded before there was one
        report.fault(where, "its log-probabilities do not give their checksum")
