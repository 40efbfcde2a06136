"""Real processes for tests: a service started as `python -m NAME`, and the real Envoy in front, all on free ports."""

import asyncio
import contextlib
import dataclasses
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from openai_bridge.server import Ports
from whippletree import serve
from whippletree.cli.envoy import EnvoyValues, arguments, listening_port, render, templates, write
from whippletree.http_door import HttpDoor
from whippletree.settings import ServerTls

ENVOY = Path(sys.executable).with_name("envoy")
STARTING = 180.0
"""Seconds for a process to be ready; only a fault ever takes that long."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """Where Envoy finds the bridge, or its replicas with commas between them."""

    grpc: str
    http: str

    @classmethod
    def at(cls, ports: Ports) -> "Bridge":
        """One of this process."""
        return cls(f"127.0.0.1:{ports.grpc}", f"127.0.0.1:{ports.http}")

    def and_also(self, *others: "Bridge") -> "Bridge":
        """Replicas."""
        every = (self, *others)
        return Bridge(",".join(one.grpc for one in every), ",".join(one.http for one in every))


@contextlib.asynccontextmanager
async def taken_for_a_bridge(*services: serve.Service) -> AsyncIterator[Bridge]:
    """A server of these services, at which Envoy finds all that it looks for at a bridge; there may be none."""
    door = HttpDoor([service.full_name for service in services], "127.0.0.1:0")
    async with serve.listening(services, "127.0.0.1:0", grace=0, doors=[door]) as port:
        yield Bridge.at(Ports(grpc=port, http=door.port))


@dataclass(slots=True)
class Service:
    """One running service."""

    process: Process
    address: str
    """host:port."""
    http: str = ""
    """host:port of a bridge's plain HTTP."""

    @property
    def bridge(self) -> "Bridge":
        """For Envoy, where it is one."""
        return Bridge(self.address, self.http)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit code."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.process.wait()


@contextlib.asynccontextmanager
async def service(
    name: str, *given: str, listen: str = "127.0.0.1:0", insecure_dev: bool = True
) -> AsyncIterator[Service]:
    """Start a service and wait for its line `listening on host:port`, and where else; kill it at the end."""
    identity = ("--insecure_dev", "true") if insecure_dev else ()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", name, "--listen", listen, *identity, *given, stdout=PIPE, env=environment
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(STARTING):
            line = (await process.stdout.readline()).decode().strip()
        assert line.startswith("listening on "), f"{name} did not start: {line!r}"
        address, _, http = line.removeprefix("listening on ").partition(", for plain HTTP on ")
        yield Service(process, address, http)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@dataclass(slots=True, kw_only=True)
class Envoy:
    """The running binary and the folder of files that it watches."""

    url: str
    admin: str
    """host:port."""
    process: Process
    values: EnvoyValues
    texts: Mapping[str, str]
    """The templates."""
    config: Path

    def change(self, *replacing: tuple[str, str], bridge: Bridge | None = None, tls: ServerTls | None = None) -> None:
        """Write the files anew, with other texts in the templates or other values, and return at once."""
        self.texts = replaced(self.texts, replacing)
        self.values = dataclasses.replace(self.values, tls=tls or self.values.tls)
        if bridge is not None:
            self.values = dataclasses.replace(self.values, bridge=bridge.grpc, bridge_http=bridge.http)
        write(render(self.texts, self.values, self.config), self.config)

    async def stats(self, prefix: str) -> dict[str, int]:
        """Counters and gauges whose names begin so."""
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://{self.admin}/stats", params={"filter": f"^{re.escape(prefix)}"})
        pairs = [line.rpartition(": ") for line in answer.text.splitlines()]
        return {name: int(value) for name, _, value in pairs if value.isdigit()}

    async def until(self, name: str, value: int) -> None:
        """Wait until a counter or gauge has this value."""
        found = None
        try:
            async with asyncio.timeout(STARTING):
                while (found := (await self.stats(name)).get(name)) != value:
                    await asyncio.sleep(0.02)  # Envoy tells nobody
        except TimeoutError:
            raise AssertionError(f"{name} is {found}, not {value}") from None


@contextlib.asynccontextmanager
async def envoy(
    *, gateway: str, bridge: Bridge, folder: Path, replacing: tuple[tuple[str, str], ...] = (), **values: Any
) -> AsyncIterator[str]:
    """As `running_envoy`; yields its base URL alone."""
    async with running_envoy(gateway=gateway, bridge=bridge, folder=folder, replacing=replacing, **values) as running:
        yield running.url


@contextlib.asynccontextmanager
async def running_envoy(
    *, gateway: str, bridge: Bridge, folder: Path, replacing: tuple[tuple[str, str], ...] = (), **given: Any
) -> AsyncIterator[Envoy]:
    """Start Envoy with the product's templates and wait until it is ready.

    `replacing` shortens times and limits in the templates for tests of what takes minutes; `given` are fields of
    EnvoyValues. Nobody is asked for a token unless they say so.
    """
    texts = replaced(templates(), replacing)
    values = EnvoyValues(
        listen="127.0.0.1:0",
        admin="127.0.0.1:0",
        gateway=gateway,
        bridge=bridge.grpc,
        bridge_http=bridge.http,
        access_log=str(folder / "access.log"),
        **({"insecure_dev": True} | given),
    )
    config, admin_file, log = folder / "envoy", folder / "envoy.admin", folder / "envoy.log"
    write(render(texts, values, config), config)
    admin_file.unlink(missing_ok=True)
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            ENVOY, *arguments(config=config, admin_file=admin_file), stdout=out, stderr=out
        )
    try:
        scheme = "https" if values.tls.certificate else "http"
        async with asyncio.timeout(STARTING), httpx.AsyncClient(verify=False) as client:  # whether it is up
            port = await _port(client, admin_file, process)
            while not await _ready(client, f"{scheme}://127.0.0.1:{port}/readyz"):
                await asyncio.sleep(0.05)
        yield Envoy(
            url=f"{scheme}://127.0.0.1:{port}",
            admin=_text(admin_file),
            process=process,
            values=values,
            texts=texts,
            config=config,
        )
    finally:
        if process.returncode is None:
            process.terminate()  # writes what is left of its log
        await process.wait()


def replaced(texts: Mapping[str, str], replacing: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """The templates with other texts in them; each text must be there."""
    for old, new in replacing:
        assert any(old in text for text in texts.values()), f"not in the templates any more: {old}"
        texts = {name: text.replace(old, new) for name, text in texts.items()}
    return texts


async def _port(client: httpx.AsyncClient, admin_file: Path, process: Process) -> int:
    while True:
        assert process.returncode is None, "Envoy ended: see envoy.log"
        if admin := _text(admin_file):
            with contextlib.suppress(httpx.TransportError):
                listeners = await client.get(f"http://{admin}/listeners?format=json")
                if port := listening_port(listeners.text):
                    return port
        await asyncio.sleep(0.02)


async def _ready(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).status_code == 200
    except httpx.TransportError:  # the port is known before Envoy listens on it
        return False


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
