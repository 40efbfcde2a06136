"""Starts the bridge: `python -m openai_bridge --listen 127.0.0.1:0 --gateway 127.0.0.1:7010`."""

import logging
import sys

import uvloop

from openai_bridge.server import serve
from openai_bridge.settings import BridgeSettings
from whippletree import log, open_files
from whippletree.settings import load


def main() -> int:
    """Exit code: 0 stopped by a signal, 1 could not start, 2 settings."""
    settings = load(BridgeSettings)
    log.configure(settings.log_level)
    open_files.raise_limit()
    logging.getLogger(__name__).info("settings: %s", settings.model_dump_json())
    try:
        uvloop.run(serve(settings))
    except OSError as error:
        print(f"bridge: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
