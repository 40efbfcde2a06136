"""A heavy reader of events: reads whole rollouts with all their tokens, one after another, until it is killed.

Run: `python -m benchmarks.reader HOST:PORT RUN_DIR ROLLOUT...`, where RUN_DIR has the operator's key, if there is one.
Prints `listening on nothing` once it has read one rollout, and for every further one how many events and prompt tokens
it has read so far.
"""

import asyncio
import sys
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from whippletree.cli import identity
from whippletree.client import open_client


async def main(address: str, run_dir: Path, rollouts: Sequence[str]) -> None:
    """Read for ever."""
    events = tokens = 0
    async with open_client(address, identity.access(run_dir)) as client:
        for number, name in enumerate(cycle(rollouts)):
            async for event in client.events(name, tokens=True):
                assert event.call is not None
                events += 1
                tokens += len(event.call.prompt_token_ids)
            print(f"{events} {tokens}" if number else "listening on nothing", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
