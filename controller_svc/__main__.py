"""`python -m controller_svc`: starts the controller."""

import asyncio
import logging
import sys

from controller_svc.local.process import WorkRootTakenError
from controller_svc.server import serve
from controller_svc.settings import ControllerSettings
from whippletree import log
from whippletree.settings import load


def main() -> int:
    """Exit code: 0 stopped by a signal, 1 could not start, 2 settings."""
    settings = load(ControllerSettings)
    log.configure(settings.log_level)
    logging.getLogger(__name__).info("settings %s", settings.model_dump_json())
    try:
        asyncio.run(serve(settings))
    except (WorkRootTakenError, OSError) as error:
        print(f"controller: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
