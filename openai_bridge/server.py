"""The composition root: settings -> gateway client, models, tokenizers, deliveries -> a listening server."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
from whippletree.v1 import bridge_pb2_grpc

from openai_bridge.admission import RULES
from openai_bridge.completion import Completions
from openai_bridge.delivery import Deliveries
from openai_bridge.gateway import Gateway
from openai_bridge.in_flight import InFlight
from openai_bridge.key_set import KeySet
from openai_bridge.models import Models
from openai_bridge.recorder import Recorder
from openai_bridge.servicers.anthropic import AnthropicServicer
from openai_bridge.servicers.openai import OpenAIServicer
from openai_bridge.settings import BridgeSettings
from openai_bridge.tokenizer_cache import Tokenizers
from whippletree.channel import connect
from whippletree.contract import public_services
from whippletree.http_door import HttpDoor
from whippletree.identity.guard import ByKeyOrToken, Guard
from whippletree.identity.tokens import TokenVerifier
from whippletree.serve import Offer, Service, listening
from whippletree.settings import ServerTls
from whippletree.stop import Signals
from whippletree.telemetry import Telemetry, observing
from whippletree.tls import server_context

OPENAI, ANTHROPIC = DIALECTS = ("whippletree.v1.OpenAIBridgeService", "whippletree.v1.AnthropicBridgeService")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where a bridge listens."""

    grpc: int
    http: int

    def line(self, *addresses: str) -> str:
        """What a process says once it serves on these two."""
        hosts = [address.rpartition(":")[0] for address in addresses]
        return f"listening on {hosts[0]}:{self.grpc}, for plain HTTP on {hosts[1]}:{self.http}"


async def serve(settings: BridgeSettings) -> None:
    """Serve until SIGTERM or SIGINT; says where on standard output."""
    signals = Signals.caught()
    async with serving(settings, signals.haste) as ports:
        print(ports.line(settings.listen, settings.http), flush=True)
        await signals.stop.wait()


@contextlib.asynccontextmanager
async def serving(settings: BridgeSettings, haste: asyncio.Event | None = None) -> AsyncIterator[Ports]:
    """A bridge while the block runs; yields its ports. Its end: answers end, deliveries are reported, it closes."""
    http = door(settings, settings.tls)
    async with (
        observing("bridge", settings.metrics, settings.telemetry) as telemetry,
        connect(settings.gateway, settings.access) as channel,
        offering(settings, channel, telemetry) as offer,
        listening(
            offer.services,
            settings.listen,
            notice=settings.notice,
            grace=settings.grace,
            cut=offer.cut,
            haste=haste,
            reflected=public_services(),  # Envoy sends questions of reflection here
            layers=[telemetry.layer],
            guard=offer.guard,
            tls=settings.tls,
            doors=[http],
        ) as port,
    ):
        yield Ports(grpc=port, http=http.port)


def door(settings: BridgeSettings, tls: ServerTls) -> HttpDoor:
    """Where harnesses' calls come in. OSError where a certificate cannot be read."""
    return HttpDoor(DIALECTS, settings.http, server_context(tls))


@contextlib.asynccontextmanager
async def offering(settings: BridgeSettings, channel: grpc.aio.Channel, telemetry: Telemetry) -> AsyncIterator[Offer]:
    """All of the bridge but its server; `channel` leads to the gateway."""
    delivery, generation = settings.delivery, settings.generation
    in_flight = InFlight()
    gateway = Gateway(channel, patience=generation.patience, generation_deadline=generation.deadline)
    recorder = Recorder(telemetry.registry, telemetry.tracing)
    async with (
        Deliveries(
            gateway,
            queue=delivery.queue,
            patience=delivery.patience,
            flush=delivery.flush,
            count=recorder.delivered,
        ) as deliveries,
        _guard(settings, gateway) as guard,
    ):
        services = _services(settings, gateway, deliveries, in_flight, recorder)
        yield Offer(services=services, cut=in_flight.cut, guard=guard)


@contextlib.asynccontextmanager
async def _guard(settings: BridgeSettings, gateway: Gateway) -> AsyncIterator[Guard | None]:
    """None = the bridge runs without identity."""
    if settings.insecure_dev:
        yield None
        return
    async with KeySet(gateway.public_keys, time.monotonic).followed() as keys:
        yield Guard(RULES, ByKeyOrToken(TokenVerifier(keys, time.time)))


def _services(
    settings: BridgeSettings, gateway: Gateway, deliveries: Deliveries, in_flight: InFlight, recorder: Recorder
) -> list[Service]:
    """One service per dialect, on the same parts."""
    models = Models(gateway, age=settings.models_age, clock=time.monotonic)
    completions = Completions(
        gateway=gateway,
        models=models,
        tokenizers=Tokenizers(),
        deliveries=deliveries,
        limits=settings.limits,
        keep_alive=settings.stream.keep_alive,
        clock=time.time,
        recorder=recorder,
    )
    openai = OpenAIServicer(completions=completions, models=models, in_flight=in_flight)
    anthropic = AnthropicServicer(completions=completions, models=models, in_flight=in_flight)
    return [
        Service(
            full_name=OPENAI,
            register=lambda server: bridge_pb2_grpc.add_OpenAIBridgeServiceServicer_to_server(openai, server),
        ),
        Service(
            full_name=ANTHROPIC,
            register=lambda server: bridge_pb2_grpc.add_AnthropicBridgeServiceServicer_to_server(anthropic, server),
        ),
    ]
