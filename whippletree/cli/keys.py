"""`whippletree keys`: who may use a system, and what signs its attempts' tokens."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.table import Table

from whippletree.cli import identity
from whippletree.cli.console import OUT, UserError, run
from whippletree.cli.project import DEFAULT_RUN_DIR
from whippletree.identity import folder

app = typer.Typer(
    help="Operators' keys and the keys that sign attempts' tokens. A running system sees a change within a second.",
    no_args_is_help=True,
)
T = TypeVar("T")
RunDir = Annotated[Path, typer.Option(help="Folder of the system whose keys are meant.")]
Folder = Annotated[Path | None, typer.Option(help="A gateway's folder of keys, instead of keys/ in --run-dir.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose it is or what for, for people.")],
    run_dir: RunDir = DEFAULT_RUN_DIR,
    keys: Folder = None,
) -> None:
    """Make an operator's key and print it, once: only its digest is kept. The folder is made where it is missing.

    Example: whippletree keys create "training cluster"
    """
    run(_create(name, keys or identity.keys_folder(run_dir)))


@app.command("list")
def list_(run_dir: RunDir = DEFAULT_RUN_DIR, keys: Folder = None) -> None:
    """List operators' keys and signing keys, the oldest first.

    Example: whippletree keys list --run-dir run/quickstart
    """
    run(_list(keys or identity.keys_folder(run_dir)))


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="Id of an operator's or a signing key, as `list` prints it.")],
    run_dir: RunDir = DEFAULT_RUN_DIR,
    keys: Folder = None,
) -> None:
    """Make a key worthless. Revoking a signing key makes every token worthless that it has signed.

    Example: whippletree keys revoke 3f9a01c2
    """
    run(_revoke(key_id, keys or identity.keys_folder(run_dir)))


@app.command()
def rotate(run_dir: RunDir = DEFAULT_RUN_DIR, keys: Folder = None) -> None:
    """Make a new signing key. It signs as soon as every verifier knows it; older ones verify until they are revoked.

    Example: whippletree keys rotate --run-dir run/quickstart
    """
    run(_rotate(keys or identity.keys_folder(run_dir)))


async def _create(name: str, keys: Path) -> None:
    if not any((keys / "signing").glob("*.pem")):
        folder.add_signing_key(keys, now=time.time())
    print(_in(keys, lambda: folder.add_operator(keys, name, now=time.time())))  # alone on its line, for $(...)


async def _list(keys: Path) -> None:
    held = _in(keys, lambda: folder.read(keys))
    table = Table(box=None, pad_edge=False)
    for title in ("id", "kind", "created", "name"):
        table.add_column(title, no_wrap=title != "name")
    signs = held.signer(time.time())
    for key in held.operators.values():
        table.add_row(key.key_id, "operator", _clock(key.created), key.name)
    for signing in held.signing:
        role = "signs" if signing is signs else "verifies"
        table.add_row(signing.kid, "signing", _clock(folder.created(signing.kid)), role)
    OUT.print(table)


async def _revoke(key_id: str, keys: Path) -> None:
    if _in(keys, lambda: folder.revoke_operator(keys, key_id)):
        return
    held = _in(keys, lambda: folder.read(keys))
    if key_id not in held.public:
        raise UserError(f"{key_id}: no such key in {keys}; see `whippletree keys list`")
    if len(held.signing) == 1:
        raise UserError(f"{key_id} is the only signing key; make another first: whippletree keys rotate")
    (keys / "signing" / f"{key_id}.pem").unlink()


async def _rotate(keys: Path) -> None:
    kid = _in(keys, lambda: folder.add_signing_key(keys, now=time.time()))
    OUT.print(f"{kid} signs in {folder.SETTLING:.0f} s; revoke the older ones when their last token has ended")


def _in(keys: Path, work: Callable[[], T]) -> T:
    try:
        return work()
    except (OSError, ValueError) as error:
        raise UserError(f"{keys}: {error}") from error


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
