"""The composition root: builds every part from the settings and serves.

Order of a stop (`whippletree/stop.py`): holds and watches end with SHUTTING_DOWN, so that their callers go on at
another replica; calls in flight get their grace; what still runs is aborted at the engines, queued writes are
committed, the store is closed.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from grpc_health.v1 import health, health_pb2
from whippletree.v1 import (
    attempt_pb2_grpc,
    event_pb2_grpc,
    identity_pb2_grpc,
    inference_pb2_grpc,
    model_pb2_grpc,
    phase_pb2_grpc,
    rollout_pb2_grpc,
    run_pb2_grpc,
)

from gateway_svc.admission import RULES
from gateway_svc.catalog import Catalog
from gateway_svc.deleter import Deleter
from gateway_svc.engines.clients import connected
from gateway_svc.engines.leased import Leased
from gateway_svc.engines.pool import Limits, Pool
from gateway_svc.engines.watch import Watch
from gateway_svc.event_feed import EventFeed
from gateway_svc.feed import Feed
from gateway_svc.generate import Claimed, Generator
from gateway_svc.issuer import Issuer
from gateway_svc.leases import Alone, Leases, Told
from gateway_svc.pace import Watchers
from gateway_svc.phase import Gates
from gateway_svc.publish import Publisher
from gateway_svc.recorder import Recorder
from gateway_svc.room import WRITE, RoomKeeper
from gateway_svc.sample import Sampler
from gateway_svc.scrape import Gauges, Scrape
from gateway_svc.servicers.attempt import AttemptServicer
from gateway_svc.servicers.event import EventServicer
from gateway_svc.servicers.identity import IdentityServicer
from gateway_svc.servicers.inference import InferenceServicer
from gateway_svc.servicers.model import ModelServicer
from gateway_svc.servicers.phase import PhaseServicer
from gateway_svc.servicers.rollout import RolloutServicer
from gateway_svc.servicers.run import RunServicer
from gateway_svc.settings import GatewaySettings, IdentitySettings, StoreSettings
from gateway_svc.store import Store
from gateway_svc.types import Micros
from whippletree import tasks
from whippletree.errors import StoreFullError
from whippletree.identity.folder import KeyFolder
from whippletree.identity.guard import ByKeyOrToken, Guard
from whippletree.identity.tokens import TokenVerifier
from whippletree.serve import Offer, Service, listening
from whippletree.telemetry import Telemetry, observing

log = logging.getLogger(__name__)

TIDY_EVERY = 3600.0
"""Seconds between two removals of what is old."""


@asynccontextmanager
async def serving(settings: GatewaySettings, haste: asyncio.Event | None = None) -> AsyncIterator[int]:
    """The gateway, while the block runs; yields its port. OSError where port or store is in use."""
    async with (
        observing("gateway", settings.metrics, settings.telemetry) as telemetry,
        offering(settings, telemetry) as offer,
        listening(
            offer.services,
            settings.listen,
            notice=settings.notice,
            grace=settings.grace,
            drain=offer.drain,
            haste=haste,
            checks=offer.checks,
            layers=[telemetry.layer],
            guard=offer.guard,
            tls=settings.tls,
        ) as port,
    ):
        yield port


@asynccontextmanager
async def offering(settings: GatewaySettings, telemetry: Telemetry) -> AsyncIterator[Offer]:
    """All of the gateway but its server. OSError where the store is in use or the keys cannot be read."""
    keys = _keys(settings)
    store = await Store.open(
        settings.store.where,
        synchronous=settings.store.synchronous,
        capacity=settings.store.capacity,
        readers=settings.store.readers,
        clock=now,
    )
    try:
        async with _parts(settings, store, keys, telemetry) as offer:
            yield offer
    finally:
        await store.close()


@asynccontextmanager
async def _parts(
    settings: GatewaySettings, store: Store, keys: KeyFolder | None, telemetry: Telemetry
) -> AsyncIterator[Offer]:
    leases = _leases(store)
    recorder = Recorder(telemetry.registry, telemetry.tracing)
    store.on_batch(recorder.committed)
    gates = Gates(time.monotonic, leases)
    catalog = await Catalog.load(store, gates.move)
    feed, event_feed = Feed(store, quiet=settings.watch_quiet), EventFeed(store, quiet=settings.watch_quiet)
    watchers = Watchers(settings.watch_patience, time.monotonic)
    telemetry.before_scrape(Scrape(Gauges(telemetry.registry), store, gates, watchers, time.monotonic).refresh)
    engine, leased = settings.engine, Leased(store, time.monotonic)
    await leased.refresh()
    async with (
        connected(
            engine.patterns, generate_timeout=engine.generate_timeout, control_timeout=engine.control_timeout
        ) as clients,
        _claiming(store) as claimed,
    ):
        limits = Limits(max_in_flight=engine.max_in_flight, max_waiting=engine.max_waiting, spread=engine.spread)
        pool = Pool(clients, leased, gates, limits, now)
        watch = Watch(catalog, leased, pool, gates, pause=engine.check_pause)
        generator = Generator(
            store=store,
            catalog=catalog,
            gates=gates,
            sampler=Sampler(catalog, gates, pool, clients, recorder, tries=engine.tries, pause=engine.pause),
            clock=now,
            new_id=lambda: uuid.uuid4().hex,
            retry_grace=settings.retry_grace,
            claimed=claimed,
            recorder=recorder,
        )
        publisher, deleter = Publisher(catalog, gates, pool, watch), Deleter(store, catalog, gates)
        await deleter.resume()

        async def drain() -> None:
            gates.stop()
            feed.close()
            event_feed.close()

        issuer = _issuer(settings.identity, keys)
        services = _services(
            RolloutServicer(store, feed, issuer, watchers),
            AttemptServicer(store),
            EventServicer(store, event_feed, watchers),
            InferenceServicer(generator, store),
            ModelServicer(catalog, publisher, leased, pool, watch, engine.patterns),
            RunServicer(catalog, deleter),
            PhaseServicer(catalog, gates),
            IdentityServicer(store, issuer, None if keys is None else lambda: keys.keys, now),
        )
        checks = health.aio.HealthServicer()

        async def tell(writable: bool) -> None:
            status = health_pb2.HealthCheckResponse
            await checks.set(WRITE, status.SERVING if writable else status.NOT_SERVING)

        keeper = RoomKeeper(store, tell, pause=settings.store.probe_pause)
        background = [
            asyncio.create_task(keeper.run()),
            asyncio.create_task(_tidy(deleter, settings.store)),
            asyncio.create_task(event_feed.run()),
        ]
        background += [asyncio.create_task(catalog.follow()), asyncio.create_task(watch.run())]
        told = Told(
            in_flight=gates.in_flight,
            interrupt=gates.interrupt,
            read_again=catalog.refresh,
            changed=gates.look_again,
        )
        leasing = asyncio.create_task(leases.run(told))
        try:
            yield Offer(services=services, drain=drain, checks=checks, guard=_guard(keys))
        finally:
            await tasks.end(*background)
            await generator.close()
            await publisher.close()
            await deleter.close()
            await tasks.end(leasing)


def _services(
    rollout: RolloutServicer,
    attempt: AttemptServicer,
    event: EventServicer,
    inference: InferenceServicer,
    model: ModelServicer,
    run: RunServicer,
    phase: PhaseServicer,
    identity: IdentityServicer,
) -> list[Service]:
    def service(name: str, add: object, servicer: object) -> Service:
        assert callable(add)
        return Service(full_name=f"whippletree.v1.{name}", register=lambda server: add(servicer, server))

    return [
        service("RolloutService", rollout_pb2_grpc.add_RolloutServiceServicer_to_server, rollout),
        service("AttemptService", attempt_pb2_grpc.add_AttemptServiceServicer_to_server, attempt),
        service("EventService", event_pb2_grpc.add_EventServiceServicer_to_server, event),
        service("InferenceService", inference_pb2_grpc.add_InferenceServiceServicer_to_server, inference),
        service("ModelService", model_pb2_grpc.add_ModelServiceServicer_to_server, model),
        service("RunService", run_pb2_grpc.add_RunServiceServicer_to_server, run),
        service("PhaseService", phase_pb2_grpc.add_PhaseServiceServicer_to_server, phase),
        service("IdentityService", identity_pb2_grpc.add_IdentityServiceServicer_to_server, identity),
    ]


def _keys(settings: GatewaySettings) -> KeyFolder | None:
    """None = the gateway runs without identity. OSError where the folder cannot be used."""
    if settings.insecure_dev:
        return None
    assert settings.identity.folder is not None
    try:
        return KeyFolder(settings.identity.folder, time.time)
    except ValueError as error:
        raise OSError(str(error)) from error


def _issuer(settings: IdentitySettings, keys: KeyFolder | None) -> Issuer | None:
    if keys is None:
        return None
    return Issuer(lambda: keys.keys.signer(time.time()), lifetime=settings.lifetime, slack=settings.slack)


def _guard(keys: KeyFolder | None) -> Guard | None:
    if keys is None:
        return None
    return Guard(RULES, ByKeyOrToken(TokenVerifier(keys, time.time), lambda: keys.keys.operators))


def _leases(store: Store) -> Leases:
    if not store.url:
        return Alone()
    from gateway_svc.shared_leases import SharedLeases  # its driver is an optional extra

    return SharedLeases(store.url)


@asynccontextmanager
async def _claiming(store: Store) -> AsyncIterator[Claimed | None]:
    if not store.url:
        yield None
        return
    from gateway_svc.shared_flights import SharedFlights  # its driver is an optional extra

    async with SharedFlights(store.url) as shared:
        yield shared.claimed


async def _tidy(deleter: Deleter, settings: StoreSettings) -> None:
    """Remove what is old, now and every hour."""
    age = Micros(timedelta(days=settings.retention_days) // timedelta(microseconds=1))
    while True:
        try:
            await deleter.forget()
            if age:
                await deleter.remove_outlived(age, now())
        except StoreFullError as error:
            log.warning("tidying waits: %s", error)
        except Exception:  # whatever it was: without this task nothing old would be removed any more
            log.exception("tidying waits")
        await asyncio.sleep(TIDY_EVERY)


def now() -> Micros:
    """Microseconds since 1970 UTC."""
    return Micros(time.time_ns() // 1000)
