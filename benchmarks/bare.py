"""The least that can answer a harness: the bridge's rpc, which does nothing but send the same bytes. For measurements.

Run: `python -m benchmarks.bare --listen 127.0.0.1:0 --http 127.0.0.1:0`; prints `listening on HOST:PORT`. With Envoy
before it, it shows what any servicer in Python costs, and so how much of a call's time is work of ours.
"""

import argparse
from collections.abc import AsyncIterator
from typing import Any

import uvloop
from google.api.httpbody_pb2 import HttpBody
from whippletree.v1 import bridge_pb2_grpc

from whippletree.http_door import HttpDoor
from whippletree.serve import Service, listening
from whippletree.stop import until_signal

BODY = b'{"choices":[{"message":{"role":"assistant","content":"%s"}}]}' % (b"word " * 100)


class Bare(bridge_pb2_grpc.OpenAIBridgeServiceServicer):
    """Always the same."""

    async def ChatCompletions(self, request: Any, context: Any) -> AsyncIterator[HttpBody]:
        """One part."""
        yield HttpBody(content_type="application/json", data=BODY)


async def main(listen: str, http: str) -> None:
    """Serve until a signal."""
    bare = Bare()  # type: ignore[abstract]  # only one rpc is asked
    service = Service(
        full_name="whippletree.v1.OpenAIBridgeService",
        register=lambda server: bridge_pb2_grpc.add_OpenAIBridgeServiceServicer_to_server(bare, server),
    )
    async with listening([service], listen, doors=[HttpDoor([service.full_name], http)]) as port:
        print(f"listening on 127.0.0.1:{port}", flush=True)
        await until_signal()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Answer chat completions with the same bytes.")
    parser.add_argument("--listen", default="127.0.0.1:0", help="host:port; port 0 = any free one")
    parser.add_argument("--http", default="127.0.0.1:0", help="the same for plain HTTP")
    given = parser.parse_args()
    uvloop.run(main(given.listen, given.http))
