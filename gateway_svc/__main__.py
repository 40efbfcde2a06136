"""`python -m gateway_svc --listen 127.0.0.1:0 --store.path record.db`: prints its address, serves until a signal."""

import logging
import sys

import uvloop

from gateway_svc.server import serving
from gateway_svc.settings import GatewaySettings
from whippletree import log, open_files, settings
from whippletree.stop import Signals


async def main(chosen: GatewaySettings) -> None:
    """Serve."""
    signals = Signals.caught()
    async with serving(chosen, signals.haste) as port:
        host = chosen.listen.rpartition(":")[0]
        print(f"listening on {host}:{port}", flush=True)
        await signals.stop.wait()


if __name__ == "__main__":
    chosen = settings.load(GatewaySettings)
    log.configure(chosen.log_level)
    open_files.raise_limit()
    logging.getLogger("gateway_svc").info("settings %s", chosen.model_dump_json())
    try:
        uvloop.run(main(chosen))
    except OSError as error:
        print(f"gateway: {error}", file=sys.stderr)
        sys.exit(1)
