"""`whippletree record`: the file that holds everything: look through it, back it up, restore it, make it smaller."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from gateway_svc import archive
from gateway_svc.verify import Report
from whippletree.cli.console import OUT, Failure, UserError, run
from whippletree.cli.project import DEFAULT_RUN_DIR

T = TypeVar("T")
MIB = float(1 << 20)
SHOWN = 100
"""Faults that are printed."""

app = typer.Typer(help="Look through the record, back it up, restore it, make it smaller.", no_args_is_help=True)
Store = Annotated[str, typer.Option(help="The record's file, instead of record.db in --run-dir.")]
RunDir = Annotated[Path, typer.Option(help="Folder of the system whose record is meant.")]


@app.command()
def verify(store: Store = "", run_dir: RunDir = DEFAULT_RUN_DIR) -> None:
    """Look through a record, also while its gateway serves, and say what was looked at and what is wrong.

    Gaps in the sequence that no deletion explains, calls without events and events without calls, calls whose tokens do
    not give their digest or do not continue their parent, states that do not fit the attempts, answers that name
    nothing. --store takes a postgresql+psycopg:// URL too. Exit code 1 where something is wrong.

    Example: whippletree record verify --run-dir run/quickstart
    """
    where = store if store.startswith("postgresql") else _path(store, run_dir)
    run(_verify(where))


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="New file.")], store: Store = "", run_dir: RunDir = DEFAULT_RUN_DIR
) -> None:
    """Write one consistent snapshot of a record to a new file, also while its gateway serves.

    Example: whippletree record backup nightly.db --run-dir run/quickstart
    """
    run(_backup(_path(store, run_dir), file))


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="A file that `backup` wrote.")],
    store: Store = "",
    run_dir: RunDir = DEFAULT_RUN_DIR,
    replace: Annotated[bool, typer.Option("--replace", help="Put a record that is there aside.")] = False,
) -> None:
    """Look through a back-up and make it the record of a stopped gateway.

    Example: whippletree record restore nightly.db --store run/quickstart/record.db --replace
    """
    run(_restore(file, _path(store, run_dir), replace))


@app.command()
def compact(store: Store = "", run_dir: RunDir = DEFAULT_RUN_DIR) -> None:
    """Give the room of deleted runs back to the disk; the gateway must be stopped.

    A gateway that serves fills that room again by itself.

    Example: whippletree record compact --run-dir run/quickstart
    """
    run(_compact(_path(store, run_dir)))


async def _verify(store: Path | str) -> None:
    report = await _done(lambda: archive.look_through(store))
    for line in lines(report):
        OUT.print(line, markup=False)
    if report.faults:
        raise Failure(f"{len(report.faults)} faults")


async def _backup(store: Path, file: Path) -> None:
    size = await _done(lambda: archive.back_up(store, file))
    OUT.print(f"{file}: {size / MIB:.1f} MiB", markup=False)


async def _restore(file: Path, store: Path, replace: bool) -> None:
    before = await _done(lambda: archive.restore(file, store, replace=replace))
    OUT.print(f"{store} is restored" + (f"; the record before lies in {before}" if before else ""), markup=False)


async def _compact(store: Path) -> None:
    before, after = await _done(lambda: archive.compact(store))
    OUT.print(f"{store}: {before / MIB:.1f} MiB before, {after / MIB:.1f} MiB now", markup=False)


def lines(report: Report) -> list[str]:
    """A report for people: the faults, then the counts."""
    found = [f"fault: {fault.where}: {fault.what}" for fault in report.faults[:SHOWN]]
    if len(report.faults) > SHOWN:
        found.append(f"... and {len(report.faults) - SHOWN} more faults")
    found += [f"{count:>12,} {what}" for what, count in report.counts.items()]
    return [*found, "all of it is as it must be"] if not report.faults else found


def _path(store: str, run_dir: Path) -> Path:
    path = Path(store) if store else run_dir / "record.db"
    if not store and not path.parent.is_dir():
        raise typer.BadParameter(f"--run-dir {run_dir}: no such folder; give --store or the folder of a system")
    return path


async def _done(work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except archive.ArchiveError as error:
        raise UserError(str(error)) from error
