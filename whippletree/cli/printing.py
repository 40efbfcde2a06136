"""Rollouts and their events as lines for people."""

import json
from datetime import datetime

from whippletree.cli.console import OUT
from whippletree.cli.text import Decoder
from whippletree.client import Call, Event, Rollout

DELIVERIES = {"unknown": "delivery not reported", "lost": "lost before it was delivered"}
"""In words, where the record's own is not enough."""


def print_rollout(rollout: Rollout) -> None:
    """Three lines of what it is and how it is."""
    OUT.print(
        f"{rollout.rollout_id}: {rollout.state}" + (f" ({rollout.message})" if rollout.message else ""),
        style="bold",
        markup=False,
    )
    OUT.print(
        f"run {rollout.run_id}, group {rollout.group_id or '-'}, {rollout.split}, created {clock(rollout.created)}",
        markup=False,
    )
    OUT.print(f"input {json.dumps(dict(rollout.input), ensure_ascii=False)}", markup=False)


def print_event(event: Event, decoder: Decoder | None, *, tokens: bool) -> None:
    """What happened; a model call as text, with `tokens` or without `decoder` as ids too."""
    head = f"[{event.sequence}] attempt {event.attempt} {clock(event.time)}"
    if event.call is not None:
        _print_call(head, event.call, decoder, tokens=tokens)
    elif event.reward is not None:
        OUT.print(f"{head} reward {event.reward} from {event.reward_source}", style="yellow", markup=False)
    elif event.note is not None:
        OUT.print(f"{head} note {event.note[0]}: {json.dumps(dict(event.note[1]), ensure_ascii=False)}", markup=False)
    elif event.log is not None:
        OUT.print(f"{head} {event.log[0]}: {event.log[1].rstrip()}", markup=False)
    else:
        OUT.print(f"{head} (a kind of event this version does not know)", markup=False)


def _print_call(head: str, call: Call, decoder: Decoder | None, *, tokens: bool) -> None:
    facts = (
        f"{call.prompt_token_count} + {call.response_token_count} tokens",
        f"weights {', '.join(call.weight_versions) or 'unknown'}",
        call.finish_reason,
        DELIVERIES.get(call.delivery, call.delivery),
        f"{call.engine_seconds:.2f} s",
    )
    who = f" of {call.model} ({call.role})" if call.role != "policy" else ""
    OUT.print(f"{head} call {call.call_id}{who}: {', '.join(facts)}", style="cyan", markup=False)
    if decoder is not None:
        added = decoder(call.prompt_token_ids[call.shared_token_count :])
        OUT.print("  prompt adds: " + added.strip().replace("\n", "\n    "), markup=False)
        response = decoder(call.response_token_ids)
        OUT.print("  response:    " + response.strip().replace("\n", "\n    "), markup=False, style="green")
    if tokens or decoder is None:
        OUT.print(f"  prompt ids   {list(call.prompt_token_ids)}", markup=False)
        OUT.print(f"  response ids {list(call.response_token_ids)}", markup=False)
        OUT.print(f"  logprobs     {[round(value, 4) for value in call.response_logprobs]}", markup=False)


def clock(time: datetime | None) -> str:
    """Time of day here; `-` for none."""
    return time.astimezone().strftime("%H:%M:%S") if time else "-"


def seconds_between(start: datetime | None, end: datetime | None) -> str:
    """Seconds; `-` while one of them is not there."""
    return f"{(end - start).total_seconds():.1f}" if start and end else "-"
