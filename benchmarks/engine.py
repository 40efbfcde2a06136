"""The cheapest engine there can be: answers /generate with the same sampled tokens at once. For measurements alone.

Run: `python -m benchmarks.engine RESPONSE_TOKENS`; prints `listening on http://HOST:PORT`. What it costs stands beside
every figure that needed it.
"""

import asyncio
import json
import sys

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


def framed(body: object) -> bytes:
    """A whole HTTP response."""
    data = json.dumps(body, separators=(",", ":")).encode()
    return HEAD % len(data) + data


def generated(count: int) -> bytes:
    """The response to every generation: `count` tokens in the form that SGLang gives them."""
    ids = [100 + number * 37 % 30_000 for number in range(count)]
    meta = {
        "id": "x",
        "finish_reason": {"type": "stop", "matched": ids[-1]},
        "weight_version": "default",
        "completion_tokens": count,
        "output_token_logprobs": [[-0.12345678, token, None] for token in ids],
        "weight_versions": [{"version": "default", "start": 0, "end": count}],
    }
    return framed({"text": "", "output_ids": ids, "meta_info": meta})


class Connection(asyncio.Protocol):
    """One keep-alive connection; knows no chunked requests."""

    generate: bytes
    other = framed({"weight_version": "default", "model_path": "", "success": True})

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.buffer = transport, bytearray()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.buffer[:end]).lower()
            _, found, rest = head.partition(b"content-length:")
            whole = end + 4 + (int(rest.split(b"\r\n", 1)[0]) if found else 0)
            if len(self.buffer) < whole:
                return
            del self.buffer[:whole]
            self.transport.write(self.generate if head.startswith(b"post /generate ") else self.other)


async def main() -> None:
    """Serve until killed."""
    Connection.generate = generated(int(sys.argv[1]))
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
