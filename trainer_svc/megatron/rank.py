"""One rank from start to end: arguments, process group, driver, command loop. torchrun starts it through `__main__`."""

import argparse
import ctypes
import logging
import os
import signal
from collections.abc import Sequence

import torch.distributed as dist
from megatron.core import parallel_state
from whippletree.v1 import backend_pb2

from trainer_svc.commands import SESSION
from trainer_svc.megatron import device
from trainer_svc.megatron.driver import Driver, DriverLostError
from trainer_svc.megatron.settings import Layout, RankSettings
from trainer_svc.megatron.worker import Worker
from whippletree import log

EXIT_DRIVER_LOST = 3
PR_SET_PDEATHSIG = 1

logger = logging.getLogger(__name__)


def parse(arguments: Sequence[str]) -> tuple[str, str, RankSettings]:
    """(driver's address, session, settings). The session is in the environment: it lets its bearer in."""
    parser = argparse.ArgumentParser(prog="trainer_svc.megatron")
    parser.add_argument("--driver", required=True, help="host:port of the driver's gRPC server")
    parser.add_argument("--tensor", type=int, default=1, help="tensor-parallel ranks")
    parser.add_argument("--pipeline", type=int, default=1, help="pipeline stages")
    parser.add_argument("--context", type=int, default=1, help="context-parallel ranks")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--layer-spec", choices=("local", "te"), default="local")
    given = parser.parse_args(arguments)
    layout = Layout(tensor=given.tensor, pipeline=given.pipeline, context=given.context)
    return given.driver, os.environ[SESSION], RankSettings(layout=layout, seed=given.seed, layer_spec=given.layer_spec)


def run(arguments: Sequence[str]) -> int:
    """The exit status: 0 after Stop, EXIT_DRIVER_LOST when the driver went away. Raises what a command raised."""
    log.configure()
    end_with_parent()
    address, session, settings = parse(arguments)
    hardware = device.find_device()
    device.join(hardware, settings.layout, settings.seed)
    try:
        driver = Driver(address, introduce(session))
        try:
            Worker(settings, hardware).run(driver.commands(), driver.report)
        finally:
            driver.close()
    except DriverLostError as error:
        logger.error("rank %d ends: %s", dist.get_rank(), error)
        return EXIT_DRIVER_LOST
    device.leave()
    return 0


def introduce(session: str) -> backend_pb2.StreamCommandsRequest:
    """Who this rank is."""
    return backend_pb2.StreamCommandsRequest(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        data_parallel_rank=parallel_state.get_data_parallel_rank(),
        data_parallel_size=parallel_state.get_data_parallel_world_size(),
        session=session,
    )


def end_with_parent() -> None:
    """The kernel ends this process when torchrun dies, however it dies: no rank is left holding a device."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
