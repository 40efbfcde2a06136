"""The composition root: builds every part from the settings and serves.

Order of a stop: holds and watches end with SHUTTING_DOWN, calls in flight get their grace, what still runs is aborted
at the engines, queued writes are committed, the store is closed.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from whippletree.v1 import (
    attempt_pb2_grpc,
    event_pb2_grpc,
    inference_pb2_grpc,
    model_pb2_grpc,
    phase_pb2_grpc,
    rollout_pb2_grpc,
    run_pb2_grpc,
)

from gateway_svc import requests
from gateway_svc.catalog import Catalog
from gateway_svc.engines.pool import Pool
from gateway_svc.engines.sglang import connected
from gateway_svc.event_feed import EventFeed
from gateway_svc.feed import Feed
from gateway_svc.generate import Generator
from gateway_svc.phase import Gates
from gateway_svc.publish import Publisher
from gateway_svc.servicers.attempt import AttemptServicer
from gateway_svc.servicers.event import EventServicer
from gateway_svc.servicers.inference import InferenceServicer
from gateway_svc.servicers.model import ModelServicer
from gateway_svc.servicers.phase import PhaseServicer
from gateway_svc.servicers.rollout import RolloutServicer
from gateway_svc.servicers.run import RunServicer
from gateway_svc.settings import GatewaySettings
from gateway_svc.store import Store
from gateway_svc.types import Micros, Phase
from whippletree.serve import Service, listening

FORGET_EVERY = 3600.0
"""Seconds between two removals of old request ids."""


@asynccontextmanager
async def serving(settings: GatewaySettings) -> AsyncIterator[int]:
    """The gateway, while the block runs; yields its port. OSError where port or store is in use."""
    store = await Store.open(
        settings.store.where,
        synchronous=settings.store.synchronous,
        capacity=settings.store.capacity,
        readers=settings.store.readers,
        clock=now,
    )
    try:
        async with _parts(settings, store) as port:
            yield port
    finally:
        await store.close()


@asynccontextmanager
async def _parts(settings: GatewaySettings, store: Store) -> AsyncIterator[int]:
    catalog, gates = await Catalog.load(store), Gates(time.monotonic)
    for run in catalog.runs.values():
        if run.phase != Phase.ROLLOUT:
            gates.close(f"runs/{run.run_id}")
    feed, event_feed = Feed(store, quiet=settings.watch_quiet), EventFeed(store, quiet=settings.watch_quiet)
    engine = settings.engine
    async with connected(generate_timeout=engine.generate_timeout, control_timeout=engine.control_timeout) as client:
        pool = Pool(client)
        generator = Generator(
            store=store,
            catalog=catalog,
            gates=gates,
            pool=pool,
            client=client,
            clock=now,
            new_id=lambda: uuid.uuid4().hex,
            tries=engine.tries,
            pause=engine.pause,
            retry_grace=settings.retry_grace,
        )
        publisher = Publisher(catalog, gates, pool)

        async def drain() -> None:
            gates.stop()
            feed.close()
            event_feed.close()

        services = _services(
            RolloutServicer(store, feed, patience=settings.watch_patience),
            AttemptServicer(store),
            EventServicer(store, event_feed, patience=settings.watch_patience),
            InferenceServicer(generator, store),
            ModelServicer(catalog, publisher, pool),
            RunServicer(catalog),
            PhaseServicer(catalog, gates),
        )
        background = [asyncio.create_task(_forget(store)), asyncio.create_task(event_feed.run())]
        try:
            async with listening(services, settings.listen, grace=settings.grace, drain=drain) as port:
                yield port
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await generator.close()
            await publisher.close()


def _services(
    rollout: RolloutServicer,
    attempt: AttemptServicer,
    event: EventServicer,
    inference: InferenceServicer,
    model: ModelServicer,
    run: RunServicer,
    phase: PhaseServicer,
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
    ]


async def _forget(store: Store) -> None:
    """Remove old request ids, now and every hour."""
    while True:
        await store.write(requests.forget)
        await asyncio.sleep(FORGET_EVERY)


def now() -> Micros:
    """Microseconds since 1970 UTC."""
    return Micros(time.time_ns() // 1000)
