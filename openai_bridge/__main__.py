"""Starts the bridge: `python -m openai_bridge --listen 127.0.0.1:0 --gateway 127.0.0.1:7010`."""

import logging

import uvloop

from openai_bridge.server import serve
from openai_bridge.settings import BridgeSettings
from whippletree import log, open_files
from whippletree.settings import load


def main() -> None:
    """Load settings, log them, serve."""
    settings = load(BridgeSettings)
    log.configure(settings.log_level)
    open_files.raise_limit()
    logging.getLogger(__name__).info("settings: %s", settings.model_dump_json())
    uvloop.run(serve(settings))


if __name__ == "__main__":
    main()
