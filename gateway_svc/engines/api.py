"""Requests with JSON to an engine's HTTP server, whichever engine it is.

In: method, address, path, body. Out: parsed JSON, or EngineError: `refused` where the engine said no to the request
itself (repeating it is useless), else it could not be reached or failed.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

from gateway_svc.engines.client import EngineError
from gateway_svc.engines.http import Client
from gateway_svc.engines.http_answer import HttpError

ABORT_TIMEOUT = 5.0
"""Seconds for telling an engine that nobody waits any more; it also delays a stop of the gateway."""
CHECK_TIMEOUT = 5.0
"""Seconds for an engine to say that it is there."""


class Api:
    """All engines' servers; times in seconds."""

    def __init__(self, client: Client, *, generate_timeout: float, control_timeout: float) -> None:
        self._client = client
        self.generate_timeout, self.control_timeout = generate_timeout, control_timeout

    async def get(self, address: str, path: str, *, seconds: float) -> Any:
        """Parsed JSON, or None where the answer is none. Raises EngineError."""
        return await self._request("GET", address, path, b"", seconds)

    async def post(self, address: str, path: str, body: Mapping[str, Any], *, seconds: float) -> Any:
        """Parsed JSON, or None where the answer is none. `body` may hold NumPy arrays. Raises EngineError."""
        return await self._request(
            "POST", address, path, orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY), seconds
        )

    async def generate(
        self, address: str, path: str, body: Mapping[str, Any], abort: Callable[[], Awaitable[None]]
    ) -> Any:
        """What answers a generation, as `post`; when cancelled, `abort` is carried out first."""
        try:
            return await self.post(address, path, body, seconds=self.generate_timeout)
        except asyncio.CancelledError:
            await asyncio.shield(abort())
            raise

    async def abort(self, address: str, path: str, body: Mapping[str, Any]) -> None:
        """Ask an engine to end a generation; one that does not answer has none."""
        try:
            await self.post(address, path, body, seconds=ABORT_TIMEOUT)
        except EngineError:
            return

    async def check(self, address: str) -> None:
        """Return if the engine says that it is well. Raises EngineError."""
        await self.get(address, "/health", seconds=CHECK_TIMEOUT)

    async def weight_version(self, address: str, path: str) -> str:
        """The label in what an engine says of itself. Raises EngineError."""
        found = await self.get(address, path, seconds=self.control_timeout)
        version = found.get("weight_version") if isinstance(found, Mapping) else None
        if not isinstance(version, str):
            raise EngineError("the engine names no weight version")
        return version

    async def _request(self, method: str, address: str, path: str, data: bytes, seconds: float) -> Any:
        try:
            reply = await self._client.request(method, address, path, data, seconds=seconds)
        except HttpError as error:
            raise EngineError(f"{path}: {error}") from error
        if reply.status != 200:
            refused = 400 <= reply.status < 500 and reply.status not in (404, 408, 429)
            raise EngineError(f"{path} answered {reply.status}: {_message(reply.body)}", refused=refused)
        try:
            return orjson.loads(reply.body)
        except orjson.JSONDecodeError:
            return _lenient(reply.body)


def only_set(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is None."""
    return {name: value for name, value in values.items() if value is not None}


def _lenient(text: bytes) -> Any:
    """JSON with NaN, which Python servers write and orjson refuses (the check of the answer finds it); else None."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _message(text: bytes) -> str:
    """The reason in an error body, at most 500 characters."""
    try:
        found = orjson.loads(text)
        for key in ("error", "message"):
            if isinstance(found, Mapping) and key in found:
                found = found[key]
        return str(found)[:500]
    except orjson.JSONDecodeError:
        return text.decode(errors="replace")[:500]
