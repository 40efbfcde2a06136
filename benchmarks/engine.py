"""The cheapest engine there can be: answers /generate with the same sampled tokens at once. For measurements alone.

Run: `python -m benchmarks.engine --tokens 128`; prints `listening on http://HOST:PORT`. What it costs stands beside
every figure that needed it. `--ids FILE` gives it other tokens to say, such as those of real text.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


def framed(body: object) -> bytes:
    """A whole HTTP response."""
    data = json.dumps(body, separators=(",", ":")).encode()
    return HEAD % len(data) + data


def printable(count: int) -> list[int]:
    """So many tokens that a character tokenizer can show."""
    return [33 + number * 37 % 90 for number in range(count)]


def generated(ids: Sequence[int]) -> bytes:
    """The response to every generation, in the form that SGLang gives it."""
    meta = {
        "id": "x",
        "finish_reason": {"type": "stop", "matched": ids[-1]},
        "weight_version": "default",
        "completion_tokens": len(ids),
        "output_token_logprobs": [[-0.12345678, token, None] for token in ids],
        "weight_versions": [{"version": "default", "start": 0, "end": len(ids)}],
    }
    return framed({"text": "", "output_ids": list(ids), "meta_info": meta})


class Connection(asyncio.Protocol):
    """One keep-alive connection; knows no chunked requests."""

    generate: bytes
    delay: float
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
            if head.startswith(b"post /generate "):
                self.answer_generation()
            else:
                self.transport.write(self.other)

    def answer_generation(self) -> None:
        """Now, or after the delay."""
        if self.delay:
            asyncio.get_running_loop().call_later(self.delay, self.transport.write, self.generate)
        else:
            self.transport.write(self.generate)


async def main(ids: Sequence[int], port: int, delay: float) -> None:
    """Serve until killed."""
    Connection.generate, Connection.delay = generated(ids), delay
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve /generate.")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each response")
    parser.add_argument("--ids", type=Path, default=None, help="JSON list of the tokens to say instead")
    parser.add_argument("--port", type=int, default=0, help="0 = any free one")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds of each generation")
    given = parser.parse_args()
    said = json.loads(given.ids.read_text()) if given.ids else printable(given.tokens)
    asyncio.run(main(said, given.port, given.delay))
