"""`whippletree rollouts`: what the record holds, for people."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from whippletree.cli import endpoints, identity, plan
from whippletree.cli.console import OUT, UserError, run
from whippletree.cli.project import DEFAULT_RUN_DIR
from whippletree.cli.supervisor import Supervisor
from whippletree.cli.system import Options, choose, prepare_keys
from whippletree.cli.text import Decoder, load_decoder, one_line
from whippletree.client import Call, Client, Complete, Deleted, Event, Rollout, open_client

DELIVERIES = {"unknown": "delivery not reported", "lost": "lost before it was delivered"}
"""In words, where the record's own is not enough."""
app = typer.Typer(
    help="Look at rollouts: what was asked, what the model said token by token, what it earned.", no_args_is_help=True
)
RunDir = Annotated[
    Path, typer.Option(help="Folder of the system; a stopped one is read by starting its gateway for a moment.")
]
Gateway = Annotated[
    str, typer.Option(help="host:port of a gateway or of Envoy, instead of --run-dir; its key in WHIPPLETREE_API_KEY.")
]


@app.command("list")
def list_(
    run_id: Annotated[str, typer.Option("--run", help="Only this training run.")] = "",
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only this state; may be repeated: queued, running, succeeded, failed, cancelled."),
    ] = None,
    limit: Annotated[int, typer.Option(help="The newest so many.", min=1)] = 50,
    run_dir: RunDir = DEFAULT_RUN_DIR,
    gateway: Gateway = "",
) -> None:
    """List rollouts, the newest last.

    Example: whippletree rollouts list --state failed
    """
    run(_list(run_id, tuple(state or ()), limit, run_dir, gateway))


@app.command()
def show(
    rollout: Annotated[str, typer.Argument(help="Id of the rollout, as `list` prints it.")],
    tokens: Annotated[bool, typer.Option("--tokens", help="Print token ids and log-probabilities too.")] = False,
    run_dir: RunDir = DEFAULT_RUN_DIR,
    gateway: Gateway = "",
) -> None:
    """Show one rollout: state, attempts, and every event in order, model calls as text.

    Example: whippletree rollouts show quickstart-s3-g0-r1
    """
    run(_show(rollout, tokens, run_dir, gateway))


@app.command()
def watch(
    run_id: Annotated[str, typer.Option("--run", help="Only this training run.")] = "",
    state: Annotated[list[str] | None, typer.Option(help="Only rollouts in this state; may be repeated.")] = None,
    once: Annotated[bool, typer.Option("--once", help="End when everything that is there was printed.")] = False,
    run_dir: RunDir = DEFAULT_RUN_DIR,
    gateway: Gateway = "",
) -> None:
    """Print rollouts as they are, then every change as it happens, until Ctrl-C; a restarted gateway is waited for.

    Example: whippletree rollouts watch --state running --state failed
    """
    run(_watch(run_id, tuple(state or ()), once, run_dir, gateway))


@app.command()
def cancel(
    rollouts: Annotated[list[str], typer.Argument(help="Ids, as `list` prints them.")],
    reason: Annotated[str, typer.Option(help="Why; it is kept with the rollout.")] = "cancelled by hand",
    run_dir: RunDir = DEFAULT_RUN_DIR,
    gateway: Gateway = "",
) -> None:
    """Cancel rollouts; their agents are stopped. One that is cancelled already stays so, one that ended is an error.

    Example: whippletree rollouts cancel quickstart-s3-g0-r1 --reason "hangs"
    """
    run(_cancel(rollouts, reason, run_dir, gateway))


async def _watch(run_id: str, states: tuple[str, ...], once: bool, run_dir: Path, gateway: str) -> None:
    _check(states)
    async with _connected(run_dir, gateway) as client:
        async for found in client.watch_rollouts(run_id=run_id, states=states):
            match found:
                case Complete():
                    if once:
                        return
                case Deleted(rollout_id=rollout_id):
                    OUT.print(f"{rollout_id} deleted", markup=False)
                case Rollout() as item:
                    why = f": {item.message}" if item.message else ""
                    attempt = f", attempt {item.attempt}" if item.attempt else ""
                    OUT.print(f"{item.rollout_id} {item.state}{attempt}{why}", markup=False)


async def _cancel(rollout_ids: list[str], reason: str, run_dir: Path, gateway: str) -> None:
    async with _connected(run_dir, gateway) as client:
        for rollout_id in rollout_ids:
            item = await client.cancel(rollout_id, reason=reason)
            OUT.print(f"{item.rollout_id} {item.state}: {item.message}", markup=False)


def _check(states: tuple[str, ...]) -> None:
    known = {"queued", "running", "succeeded", "failed", "cancelled"}
    if unknown := set(states) - known:
        raise UserError(f"--state {unknown.pop()}: choose from {', '.join(sorted(known))}")


async def _list(run_id: str, states: tuple[str, ...], limit: int, run_dir: Path, gateway: str) -> None:
    _check(states)
    async with _connected(run_dir, gateway) as client:
        found = [item async for item in client.rollouts(run_id=run_id, states=states)]
    table = Table(box=None, pad_edge=False)
    for title in ("rollout", "run", "split", "state", "attempt", "created", "seconds", "input"):
        table.add_column(
            title, no_wrap=title != "input", overflow="ellipsis", max_width=48 if title == "input" else None
        )
    for item in found[-limit:]:
        cells = (item.rollout_id, item.run_id, item.split, item.state, str(item.attempt), _clock(item.created))
        table.add_row(
            *cells, _seconds(item.created, item.finished), one_line(json.dumps(dict(item.input), ensure_ascii=False))
        )
    OUT.print(table)
    OUT.print(f"{len(found)} rollouts" + (f", the last {limit} shown" if len(found) > limit else ""))


async def _show(rollout_id: str, tokens: bool, run_dir: Path, gateway: str) -> None:
    async with _connected(run_dir, gateway) as client:
        rollout = await client.rollout(rollout_id)
        attempts = await client.attempts(rollout_id)
        events = [event async for event in client.events(rollout_id, tokens=True)]
        decoder = await _decoder(client, events)
    _print_rollout(rollout)
    for attempt in attempts:
        took = _seconds(attempt.started, attempt.finished)
        why = f": {attempt.message}" if attempt.message else ""
        OUT.print(f"attempt {attempt.number}: {attempt.outcome}, {took} s, by {attempt.worker}{why}", markup=False)
    for event in events:
        _print_event(event, decoder, tokens=tokens)
    calls = [event.call for event in events if event.call is not None]
    OUT.print(f"{len(calls)} calls, {sum(call.response_token_count for call in calls)} response tokens")


def _print_rollout(rollout: Rollout) -> None:
    OUT.print(
        f"{rollout.rollout_id}: {rollout.state}" + (f" ({rollout.message})" if rollout.message else ""),
        style="bold",
        markup=False,
    )
    OUT.print(
        f"run {rollout.run_id}, group {rollout.group_id or '-'}, {rollout.split}, created {_clock(rollout.created)}",
        markup=False,
    )
    OUT.print(f"input {json.dumps(dict(rollout.input), ensure_ascii=False)}", markup=False)


def _print_event(event: Event, decoder: Decoder | None, *, tokens: bool) -> None:
    head = f"[{event.sequence}] attempt {event.attempt} {_clock(event.time)}"
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


@asynccontextmanager
async def _connected(run_dir: Path, gateway: str) -> AsyncIterator[Client]:
    """A client of the gateway given, of the system that runs in `run_dir`, or of a gateway started for a moment."""
    running = endpoints.read(run_dir)
    if gateway or running is not None:
        access = identity.access_elsewhere(run_dir) if gateway else identity.access(run_dir)
        async with open_client(gateway or (running.gateway if running else ""), access) as client:
            yield client
        return
    if not (run_dir / "record.db").is_file():
        raise UserError(f"--run-dir {run_dir}: nothing runs there and there is no record; give the folder of a system")
    layout = choose(Options(model_dir=run_dir, run_dir=run_dir, port=0))
    prepare_keys(layout)
    async with Supervisor(run_dir, lambda name, what: None) as supervisor:
        part = replace(plan.gateway(layout), name="reader")
        await supervisor.start([part])
        async with open_client(part.address, identity.access(run_dir)) as client:
            yield client


async def _decoder(client: Client, events: list[Event]) -> Decoder | None:
    """The model's own tokenizer where this machine has it."""
    model_ids = {event.call.model for event in events if event.call is not None}
    if len(model_ids) != 1:
        return None
    model = await client.model(model_ids.pop())
    return await asyncio.to_thread(load_decoder, Path(model.tokenizer_path))


def _clock(time: datetime | None) -> str:
    return time.astimezone().strftime("%H:%M:%S") if time else "-"


def _seconds(start: datetime | None, end: datetime | None) -> str:
    return f"{(end - start).total_seconds():.1f}" if start and end else "-"
