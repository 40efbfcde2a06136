"""Puts a run together: gateway, folder, ranks, watch, loop; and takes it apart again, also when it is stopped."""

import asyncio
import contextlib
from collections.abc import Coroutine
from contextlib import AsyncExitStack

from trainer_svc import data, gateway, ranks
from trainer_svc.collect import Board, Collector
from trainer_svc.config import Config
from trainer_svc.folder import open_folder
from trainer_svc.loop import Inputs, Loop
from trainer_svc.progress import Reporter
from trainer_svc.recorder import Recorder
from trainer_svc.settings import TrainerSettings
from trainer_svc.summary import Summary
from whippletree import tasks
from whippletree.telemetry import observing

CANCEL = 10.0
"""Seconds in which a stopped driver tries to cancel its rollouts."""


async def train(config: Config, settings: TrainerSettings, reporter: Reporter) -> Summary:
    """One run, begun or gone on with. Cancelling it ends the ranks and cancels its rollouts; it can go on later."""
    inputs = read_inputs(config)
    async with AsyncExitStack() as stack:
        telemetry = await stack.enter_async_context(observing("trainer", settings.metrics, settings.telemetry))
        client = await stack.enter_async_context(
            gateway.connected(settings.gateway, settings.access, patience=settings.patience)
        )
        context_length = await client.context_length(config.model.name)
        folder = open_folder(settings.runs, config, fresh=settings.fresh)
        reporter.line(f"{'going on with' if folder.resumed else 'run'} {folder.run_id} in {folder.path}")
        await client.create_run(folder.run_id, config.model.name)
        crew = await stack.enter_async_context(
            ranks.started(
                config.backend, python=settings.python, listen=settings.listen, seed=config.run.seed, log=folder.log
            )
        )
        board = Board()
        collector = Collector(client, folder.run_id, config.model.name, config.agent, board)
        loop = Loop(
            config,
            folder,
            inputs,
            gateway=client,
            ranks=crew,
            collector=collector,
            reporter=reporter,
            cache=settings.cache,
            context_length=context_length,
            recorder=Recorder(telemetry.registry, telemetry.tracing),
        )
        try:
            return await _alongside(board.follow(client.watch(folder.run_id)), loop)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANCEL):
                    await collector.cancel_running()


def read_inputs(config: Config) -> Inputs:
    """Raises DataError."""
    heldout = config.data.heldout
    return Inputs(
        train=data.read_inputs(config.data.train), heldout=data.read_inputs(heldout) if heldout is not None else []
    )


async def _alongside(watch: Coroutine[object, object, None], loop: Loop) -> Summary:
    """The loop's result, with the watch running beside it; whichever fails first ends both."""
    watching, looping = asyncio.ensure_future(watch), asyncio.ensure_future(loop.run())
    try:
        await asyncio.wait({watching, looping}, return_when=asyncio.FIRST_COMPLETED)
        if not looping.done():
            await watching  # raises: a watch has no other end
        return await looping
    finally:
        await tasks.end(watching, looping)
