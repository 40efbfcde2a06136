"""Composition root: settings in, a running controller out."""

import asyncio
import logging
import time

from controller_svc.gateway import Gateway
from controller_svc.local.process import LocalRunner
from controller_svc.loop import Controller, Limits
from controller_svc.recorder import Recorder
from controller_svc.settings import ControllerSettings
from controller_svc.types import Exit, RolloutId
from whippletree import tasks
from whippletree.channel import connect
from whippletree.serve import listening
from whippletree.stop import until_signal
from whippletree.telemetry import observing

log = logging.getLogger(__name__)


async def serve(settings: ControllerSettings) -> None:
    """Run until SIGTERM or SIGINT, then end every process and report it, so that another attempt is made.

    Raises WorkRootTakenError, OSError where the port is taken.
    """
    ends: list[Controller] = []

    def on_exit(rollout: RolloutId, number: int, end: Exit) -> None:
        for controller in ends:
            controller.exited(rollout, number, end)

    runner = LocalRunner(settings.local, api=settings.api, on_exit=on_exit)
    remembered = runner.open()
    async with (
        observing("controller", settings.metrics, settings.telemetry) as telemetry,
        listening([], settings.listen, grace=0.0, tls=settings.tls) as port,
        connect(settings.gateway, settings.access) as channel,
    ):
        limits = Limits(
            max_running=settings.max_running,
            start_rate=settings.start_rate,
            timeout=settings.timeout,
            grace=settings.grace,
        )
        controller = Controller(
            gateway=Gateway(channel),
            runner=runner,
            worker=settings.worker or remembered,
            limits=limits,
            clock=time.monotonic,
            recorder=Recorder(telemetry.registry, telemetry.tracing),
        )
        ends.append(controller)
        print(f"listening on {settings.listen.rpartition(':')[0]}:{port}", flush=True)
        try:
            await _until_stopped(controller, patience=settings.grace + settings.patience)
        finally:
            await runner.close()


async def _until_stopped(controller: Controller, *, patience: float) -> None:
    running = asyncio.create_task(controller.run())
    stop = asyncio.create_task(until_signal())
    try:
        await asyncio.wait({running, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            log.info("stopping")
            controller.stop()
            await asyncio.wait({running}, timeout=patience)
        if running.done():
            running.result()
        else:
            log.warning("stopped without the gateway's word on every attempt; the next start reports them")
    finally:
        await tasks.end(stop, running)
