"""Gateway and bridge in one process, on one port: what a call costs between them is a function call.

Run: `python -m whippletree.cli.together --listen 127.0.0.1:0 --gateway.store.path record.db --gateway.grace 4`.
Settings are those of the two services, by their own prefixes in the environment (GATEWAY_, BRIDGE_). As arguments they
have `--gateway.` or `--bridge.` before them (`--gateway.config FILE` for a TOML file); without, they hold for both, as
`--listen` must. Prints its addresses, serves until a signal.

The gateway's `notice` and `grace` hold for the stop of both; then deliveries are reported and the store is closed.
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import uvloop

from gateway_svc import server as gateway_server
from gateway_svc.settings import GatewaySettings
from openai_bridge import server as bridge_server
from openai_bridge.server import Ports
from openai_bridge.settings import BridgeSettings
from whippletree import log, open_files
from whippletree.contract import public_services
from whippletree.local import LocalChannel
from whippletree.serve import listening
from whippletree.settings import load
from whippletree.stop import Signals
from whippletree.telemetry import observing


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of both services; `listen`, `grace`, `log_level`, `metrics` and `telemetry` of the process are the gateway's."""

    gateway: GatewaySettings
    bridge: BridgeSettings


def settings_of(arguments: Sequence[str]) -> Settings:
    """Settings from arguments and environment; exits with 2 and names what does not fit."""
    given: dict[str, list[str]] = {"gateway": [], "bridge": []}
    meant = tuple(given)
    for argument in arguments:
        if argument.startswith("--"):
            service, _, key = argument.removeprefix("--").partition(".")
            own = bool(key) and service in given
            meant, argument = ((service,), f"--{key}") if own else (tuple(given), argument)
        for service in meant:
            given[service].append(argument)
    chosen = Settings(gateway=load(GatewaySettings, given["gateway"]), bridge=load(BridgeSettings, given["bridge"]))
    if chosen.gateway.insecure_dev != chosen.bridge.insecure_dev:  # they share a port, and so who may come in
        print("settings: insecure_dev: one process cannot ask for keys in one half alone", file=sys.stderr)
        raise SystemExit(2)
    return chosen


@contextlib.asynccontextmanager
async def serving(settings: Settings, haste: asyncio.Event | None = None) -> AsyncIterator[Ports]:
    """Both, while the block runs; yields their ports. OSError where port or store is in use."""
    http = bridge_server.door(settings.bridge, settings.gateway.tls)
    async with (
        observing("together", settings.gateway.metrics, settings.gateway.telemetry) as telemetry,
        gateway_server.offering(settings.gateway, telemetry) as gateway,
        bridge_server.offering(settings.bridge, LocalChannel.to(gateway.services), telemetry) as bridge,
        listening(
            [*gateway.services, *bridge.services],
            settings.gateway.listen,
            notice=settings.gateway.notice,
            grace=settings.gateway.grace,
            drain=gateway.drain,
            cut=bridge.cut,
            haste=haste,
            reflected=public_services(),
            checks=gateway.checks,
            layers=[telemetry.layer],
            guard=gateway.guard.also(bridge.guard) if gateway.guard and bridge.guard else None,
            tls=settings.gateway.tls,
            doors=[http],
        ) as port,
    ):
        yield Ports(grpc=port, http=http.port)


async def main(settings: Settings) -> None:
    """Serve."""
    signals = Signals.caught()
    async with serving(settings, signals.haste) as ports:
        print(ports.line(settings.gateway.listen, settings.bridge.http), flush=True)
        await signals.stop.wait()


if __name__ == "__main__":
    chosen = settings_of(sys.argv[1:])
    log.configure(chosen.gateway.log_level)
    open_files.raise_limit()
    for part in (chosen.gateway, chosen.bridge):
        logging.getLogger(__name__).info("settings %s", part.model_dump_json())
    try:
        uvloop.run(main(chosen))
    except OSError as error:
        print(f"together: {error}", file=sys.stderr)
        sys.exit(1)
