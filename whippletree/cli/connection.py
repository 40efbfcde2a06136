"""How a command reaches a gateway: its options, and the client that they make."""

import inspect
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from whippletree.cli import endpoints, identity, plan
from whippletree.cli.console import UserError
from whippletree.cli.project import DEFAULT_RUN_DIR
from whippletree.cli.supervisor import Supervisor
from whippletree.cli.system import Options, choose, prepare_keys
from whippletree.client import Client, open_client
from whippletree.settings import ClientTls

RunDir = Annotated[
    Path, typer.Option(help="Folder of the system; a stopped one is read by starting its gateway for a moment.")
]
Gateway = Annotated[
    str, typer.Option(help="host:port of a gateway or of Envoy, instead of --run-dir; its key in WHIPPLETREE_API_KEY.")
]
Tls = Annotated[
    bool,
    typer.Option(
        "--tls", envvar="WHIPPLETREE_TLS", help="Speak TLS with --gateway, as each of the options below does."
    ),
]
_PEM: Any = {"exists": True, "dir_okay": False, "readable": True}
Authority = Annotated[
    Path | None,
    typer.Option(
        "--tls-authority",
        envvar="WHIPPLETREE_TLS_AUTHORITY",
        help="PEM file of the authorities that the server's certificate must come from, instead of this machine's.",
        **_PEM,
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option(
        "--tls-certificate",
        envvar="WHIPPLETREE_TLS_CERTIFICATE",
        help="PEM file of your own certificate, where the server asks for one.",
        **_PEM,
    ),
]
PrivateKey = Annotated[
    Path | None,
    typer.Option("--tls-key", envvar="WHIPPLETREE_TLS_KEY", help="PEM file of that certificate's key.", **_PEM),
]
ServerName = Annotated[
    str,
    typer.Option(
        "--tls-server-name",
        envvar="WHIPPLETREE_TLS_SERVER_NAME",
        help="The name that the server's certificate must hold, if not the host of --gateway.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The system that a command asks; its fields are the options that say so (`asking`).

    What is about TLS holds for `gateway`: a system in `run_dir` has none.
    """

    run_dir: RunDir = DEFAULT_RUN_DIR
    gateway: Gateway = ""
    """host:port; empty = the system in `run_dir`."""
    tls: Tls = False
    authority: Authority = None
    certificate: Certificate = None
    key: PrivateKey = None
    server_name: ServerName = ""


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of a `Place` instead of its parameter `place`."""
    options = inspect.signature(Place).parameters
    own = [parameter for name, parameter in inspect.signature(command).parameters.items() if name != "place"]
    parameters = [*own, *options.values()]

    @wraps(command)
    def given(**values: Any) -> None:
        place = Place(**{name: values.pop(name) for name in options})
        command(**values, place=place)

    given.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    given.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # where typer reads options
    return given


def client_tls(place: Place) -> ClientTls:
    """Settings of the connection. UserError where they do not go together."""
    if not (place.tls or place.authority or place.certificate or place.key or place.server_name):
        return ClientTls()
    if (place.certificate is None) != (place.key is None):
        raise UserError("--tls-certificate and --tls-key go together")
    return ClientTls(
        authority=place.authority or machines_authorities(),
        certificate=place.certificate,
        key=place.key,
        server_name=place.server_name,
    )


def machines_authorities() -> Path:
    """The file of the authorities that this machine trusts; SSL_CERT_FILE names another. UserError."""
    known = ssl.get_default_verify_paths()
    named = os.environ.get(known.openssl_cafile_env)
    if named and not Path(named).is_file():
        raise UserError(f"{known.openssl_cafile_env}: no such file: {named}")
    if known.cafile is not None:
        return Path(known.cafile)
    if known.capath is not None and (bundle := Path(known.capath) / "ca-certificates.crt").is_file():
        return bundle
    raise UserError("this machine names no authorities; give --tls-authority FILE")


@asynccontextmanager
async def connected(place: Place) -> AsyncIterator[Client]:
    """A client of the gateway given, of the system that runs in `run_dir`, or of a gateway started for a moment."""
    run_dir = place.run_dir
    if place.gateway:
        access = identity.access_to(place.gateway, run_dir).model_copy(update={"tls": client_tls(place)})
        async with open_client(place.gateway, access) as client:
            yield client
        return
    if (running := endpoints.read(run_dir)) is not None:
        async with open_client(running.gateway, identity.access(run_dir)) as client:
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
