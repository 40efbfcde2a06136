"""Client of SGLang's HTTP interface.

In: base URL and values. Out: the parsed answer, or EngineError: `refused` where the engine said no to the request
itself (repeating it is useless), else it could not be reached or failed.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson

from gateway_svc.engines.http import Client
from gateway_svc.engines.http_answer import HttpError
from gateway_svc.types import Sampling
from whippletree.tokens import unpack_ids

ABORT_TIMEOUT = 5.0
"""Seconds for telling an engine that nobody waits any more; it also delays a stop of the gateway."""


RESERVED = 7
"""SGLang refuses a prompt that leaves fewer tokens of the context."""


class EngineError(Exception):
    """An engine gave no good answer; `refused` = it will not whatever is tried."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class Sglang:
    """Made by `connected`."""

    def __init__(self, client: Client, *, generate_timeout: float, control_timeout: float) -> None:
        self._client = client
        self._generate_timeout, self._control_timeout = generate_timeout, control_timeout

    async def generate(self, address: str, rid: str, prompt: bytes, sampling: Sampling) -> Mapping[str, Any]:
        """Sample one response for packed prompt ids; when cancelled, the generation is aborted at the engine."""
        body = {
            "rid": rid,
            "input_ids": unpack_ids(prompt),
            "sampling_params": sampling_params(sampling),
            "return_logprob": True,
        }
        data = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        try:
            found = await self._request("POST", address, "/generate", data, self._generate_timeout)
        except asyncio.CancelledError:
            await asyncio.shield(self.abort(address, rid))
            raise
        if not isinstance(found, Mapping):
            raise EngineError("the engine answered no JSON object")
        return found

    async def abort(self, address: str, rid: str) -> None:
        """End a generation; an engine that cannot be reached has none."""
        try:
            await self._request("POST", address, "/abort_request", orjson.dumps({"rid": rid}), ABORT_TIMEOUT)
        except EngineError:
            return

    async def weight_version(self, address: str) -> str:
        """The label of the weights that the engine has."""
        found = await self._request("GET", address, "/model_info", b"", self._control_timeout)
        version = found.get("weight_version") if isinstance(found, Mapping) else None
        if not isinstance(version, str):
            raise EngineError("the engine names no weight version")
        return version

    async def load_weights(self, address: str, path: str, weight_version: str) -> None:
        """Load weights from a directory and drop the prefix cache, which belongs to the old ones."""
        body = orjson.dumps({"model_path": path, "weight_version": weight_version, "flush_cache": True})
        found = await self._request("POST", address, "/update_weights_from_disk", body, self._generate_timeout)
        if not isinstance(found, Mapping) or found.get("success") is not True:
            raise EngineError("the engine did not load the weights")
        wait = int(self._control_timeout / 2)
        await self._request("POST", address, f"/flush_cache?timeout={wait}", b"", self._control_timeout)

    async def _request(self, method: str, address: str, path: str, data: bytes, seconds: float) -> Any:
        """Parsed JSON, or None where the answer is none. Raises EngineError."""
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


def sampling_params(sampling: Sampling) -> dict[str, Any]:
    """SGLang's names; only what is set."""
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_new_tokens": sampling.max_tokens,
        "sampling_seed": sampling.seed,
        "stop": list(sampling.stop) or None,
    }
    return {name: value for name, value in params.items() if value is not None}


@asynccontextmanager
async def connected(*, generate_timeout: float, control_timeout: float) -> AsyncIterator[Sglang]:
    """A client while the block runs."""
    client = Client()
    try:
        yield Sglang(client, generate_timeout=generate_timeout, control_timeout=control_timeout)
    finally:
        client.close()


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
