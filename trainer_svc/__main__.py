"""python -m trainer_svc CONFIG.toml [--set section.key=value ...] [--gateway HOST:PORT]

Exit codes: 0 complete; 1 failed, with a message; 2 the configuration does not fit; 130 stopped by Ctrl-C or SIGTERM
(the run goes on where it was when it is started again).
"""

import argparse
import asyncio
import signal
import sys

from trainer_svc.backend import RanksError
from trainer_svc.collect import AgentsFailedError
from trainer_svc.config import Config, ConfigError, load_config
from trainer_svc.convert import BrokenRecordError
from trainer_svc.data import DataError
from trainer_svc.driver import train
from trainer_svc.plan import SampleTooLongError
from trainer_svc.progress import Reporter
from trainer_svc.settings import TrainerSettings
from whippletree import log
from whippletree.errors import WhippletreeError
from whippletree.settings import load

STOPPED = 130


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--set", action="append", default=[])  # by itself: values may hold commas and quotes
    overrides, rest = parser.parse_known_args()
    settings = load(TrainerSettings, rest)
    log.configure(settings.log_level)
    reporter = Reporter()
    try:
        config = load_config(settings.training, overrides.set)
        return asyncio.run(_train(config, settings, reporter))
    except ConfigError as error:
        print(f"configuration: {error}", file=sys.stderr)
        return 2
    except (AgentsFailedError, RanksError, DataError, BrokenRecordError, SampleTooLongError, WhippletreeError) as error:
        print(f"training stopped: {error}", file=sys.stderr)
        return 1


async def _train(config: Config, settings: TrainerSettings, reporter: Reporter) -> int:
    task = asyncio.ensure_future(train(config, settings, reporter))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        reporter.line("stopped; the same command goes on from the last checkpoint")
        return STOPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
