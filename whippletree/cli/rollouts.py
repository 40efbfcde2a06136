"""`whippletree rollouts`: what the record holds, for people."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from whippletree.cli.connection import Place, asking, connected
from whippletree.cli.console import OUT, UserError, run
from whippletree.cli.printing import clock, print_event, print_rollout, seconds_between
from whippletree.cli.text import Decoder, load_decoder, one_line
from whippletree.client import Client, Complete, Deleted, Event, Rollout

app = typer.Typer(
    help="Look at rollouts: what was asked, what the model said token by token, what it earned.", no_args_is_help=True
)


@app.command("list")
@asking
def list_(
    run_id: Annotated[str, typer.Option("--run", help="Only this training run.")] = "",
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only this state; may be repeated: queued, running, succeeded, failed, cancelled."),
    ] = None,
    limit: Annotated[int, typer.Option(help="The newest so many.", min=1)] = 50,
    *,
    place: Place,
) -> None:
    """List rollouts, the newest last.

    Example: whippletree rollouts list --state failed
    """
    run(_list(run_id, tuple(state or ()), limit, place))


@app.command()
@asking
def show(
    rollout: Annotated[str, typer.Argument(help="Id of the rollout, as `list` prints it.")],
    tokens: Annotated[bool, typer.Option("--tokens", help="Print token ids and log-probabilities too.")] = False,
    *,
    place: Place,
) -> None:
    """Show one rollout: state, attempts, and every event in order, model calls as text.

    Example: whippletree rollouts show quickstart-s3-g0-r1
    """
    run(_show(rollout, tokens, place))


@app.command()
@asking
def watch(
    run_id: Annotated[str, typer.Option("--run", help="Only this training run.")] = "",
    state: Annotated[list[str] | None, typer.Option(help="Only rollouts in this state; may be repeated.")] = None,
    once: Annotated[bool, typer.Option("--once", help="End when everything that is there was printed.")] = False,
    *,
    place: Place,
) -> None:
    """Print rollouts as they are, then every change as it happens, until Ctrl-C; a restarted gateway is waited for.

    Example: whippletree rollouts watch --state running --state failed
    """
    run(_watch(run_id, tuple(state or ()), once, place))


@app.command()
@asking
def cancel(
    rollouts: Annotated[list[str], typer.Argument(help="Ids, as `list` prints them.")],
    reason: Annotated[str, typer.Option(help="Why; it is kept with the rollout.")] = "cancelled by hand",
    *,
    place: Place,
) -> None:
    """Cancel rollouts; their agents are stopped. One that is cancelled already stays so, one that ended is an error.

    Example: whippletree rollouts cancel quickstart-s3-g0-r1 --reason "hangs"
    """
    run(_cancel(rollouts, reason, place))


async def _watch(run_id: str, states: tuple[str, ...], once: bool, place: Place) -> None:
    _check(states)
    async with connected(place) as client:
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


async def _cancel(rollout_ids: list[str], reason: str, place: Place) -> None:
    async with connected(place) as client:
        for rollout_id in rollout_ids:
            item = await client.cancel(rollout_id, reason=reason)
            OUT.print(f"{item.rollout_id} {item.state}: {item.message}", markup=False)


def _check(states: tuple[str, ...]) -> None:
    known = {"queued", "running", "succeeded", "failed", "cancelled"}
    if unknown := set(states) - known:
        raise UserError(f"--state {unknown.pop()}: choose from {', '.join(sorted(known))}")


async def _list(run_id: str, states: tuple[str, ...], limit: int, place: Place) -> None:
    _check(states)
    async with connected(place) as client:
        found = [item async for item in client.rollouts(run_id=run_id, states=states)]
    table = Table(box=None, pad_edge=False)
    for title in ("rollout", "run", "split", "state", "attempt", "created", "seconds", "input"):
        table.add_column(
            title, no_wrap=title != "input", overflow="ellipsis", max_width=48 if title == "input" else None
        )
    for item in found[-limit:]:
        cells = (item.rollout_id, item.run_id, item.split, item.state, str(item.attempt), clock(item.created))
        table.add_row(
            *cells,
            seconds_between(item.created, item.finished),
            one_line(json.dumps(dict(item.input), ensure_ascii=False)),
        )
    OUT.print(table)
    OUT.print(f"{len(found)} rollouts" + (f", the last {limit} shown" if len(found) > limit else ""))


async def _show(rollout_id: str, tokens: bool, place: Place) -> None:
    async with connected(place) as client:
        rollout = await client.rollout(rollout_id)
        attempts = await client.attempts(rollout_id)
        events = [event async for event in client.events(rollout_id, tokens=True)]
        decoder = await _decoder(client, events)
    print_rollout(rollout)
    for attempt in attempts:
        took = seconds_between(attempt.started, attempt.finished)
        why = f": {attempt.message}" if attempt.message else ""
        OUT.print(f"attempt {attempt.number}: {attempt.outcome}, {took} s, by {attempt.worker}{why}", markup=False)
    for event in events:
        print_event(event, decoder, tokens=tokens)
    calls = [event.call for event in events if event.call is not None]
    OUT.print(f"{len(calls)} calls, {sum(call.response_token_count for call in calls)} response tokens")


async def _decoder(client: Client, events: list[Event]) -> Decoder | None:
    """The model's own tokenizer where this machine has it."""
    model_ids = {event.call.model for event in events if event.call is not None}
    if len(model_ids) != 1:
        return None
    model = await client.model(model_ids.pop())
    return await asyncio.to_thread(load_decoder, Path(model.tokenizer_path))
