"""A small SGLang server for tests: the same paths, fields and manners as the real one, but the replies are scripted.

In: HTTP requests as the gateway sends them, and a script (``reply``) from the test.
Out: the JSON shapes recorded in ``sglang_shapes/``, and ``received``, everything that arrived, in order, but the
gateway's looks at ``/health``, which come by themselves; ``checks`` counts those.
Time is never used: a reply waits for the events named in its script, for ``/continue_generation`` or for nothing.

Example::

    async with FakeEngine() as engine:
        engine.reply = lambda input_ids: Reply([7, 8, 2])
        ...  # POST engine.url + "/generate"
        assert engine.received[0].body["input_ids"] == [1, 2, 3]
"""

import asyncio
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from aiohttp import web

from tests.fakes.engine_generation import Generation, Reply

__all__ = ["Failure", "FakeEngine", "Generation", "Received", "Reply"]

Body = dict[str, Any]
BODY = web.RequestKey("body", dict)
MAX_CONTEXT = 2048


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One request as it arrived; ``body`` is the parsed JSON (``{}`` if there was none)."""

    path: str
    body: Body
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Names in lower case."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What the next request to a path gets instead of its answer: status, body and headers, or a cut connection."""

    status: int = 500
    body: Body = dataclasses.field(default_factory=lambda: {"error": {"message": "scripted failure"}})
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    drop: bool = False


def _headers(request: web.Request) -> dict[str, str]:
    return {name.lower(): value for name, value in request.headers.items()}


class FakeEngine:
    """One server on a free port of the loopback. Invariant: while paused no generation gains a token."""

    def __init__(
        self, reply: Callable[[list[int]], Reply] | None = None, *, model_path: str = "models/tiny0", port: int = 0
    ) -> None:
        self.reply = reply or (lambda input_ids: Reply([5, 6, 7]))
        self.model_path, self.weight_version = model_path, "default"
        self.received: list[Received] = []
        self.generations: dict[str, Generation] = {}  # by rid, finished ones too
        self.failures: dict[str, list[Failure]] = {}
        self.flushes = self.checks = 0
        self.loading = asyncio.Event()
        """New weights are loaded once this is set."""
        self.loading.set()
        self._running = asyncio.Event()
        self._running.set()
        self._changed = asyncio.Condition()
        self._port, self._count = port, 0
        self._runner: web.AppRunner | None = None
        self.url = ""

    # What a test calls.

    def fail(self, path: str, failure: Failure | None = None, *, times: int = 1) -> None:
        """Make the next ``times`` requests to this path fail."""
        self.failures.setdefault(path, []).extend([failure or Failure()] * times)

    async def wait_received(self, path: str, count: int = 1) -> list[Received]:
        """Return all requests to this path once there are at least ``count``."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.requests(path)) >= count)
        return self.requests(path)

    async def wait_tokens(self, rid: str, count: int) -> None:
        """Return once the generation with this id has sampled at least ``count`` tokens."""
        async with self._changed:
            await self._changed.wait_for(lambda: rid in self.generations and len(self.generations[rid].ids) >= count)

    async def wait_finished(self, rid: str) -> Generation:
        """Return the generation with this id once it has ended."""
        async with self._changed:
            await self._changed.wait_for(lambda: rid in self.generations and self.generations[rid].finish is not None)
        return self.generations[rid]

    def requests(self, path: str) -> list[Received]:
        """Return what arrived at this path, oldest first."""
        return [r for r in self.received if r.path == path]

    @property
    def paused(self) -> bool:
        """Whether generation stands still."""
        return not self._running.is_set()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024 * 1024, middlewares=[self._record])
        app.add_routes(self.routes())
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    # The server's side.

    def routes(self) -> list[web.RouteDef]:
        """The paths that it has."""
        return [
            web.post("/generate", self._generate),
            web.get("/health", self._health),
            web.get("/model_info", self._model_info),
            web.post("/update_weights_from_disk", self._update),
            web.post("/pause_generation", self._pause),
            web.post("/continue_generation", self._continue),
            web.post("/abort_request", self._abort),
            web.post("/flush_cache", self._flush),
        ]

    @web.middleware
    async def _record(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        """Keep every request, then fail it if the script says so."""
        try:
            body = json.loads(await request.text() or "{}")
        except ValueError:
            error = {
                "object": "error",
                "message": "1 validation error:\n  JSON decode error",
                "type": "Bad Request",
                "param": None,
                "code": 400,
            }
            return web.json_response(error, status=400)
        request[BODY] = body
        if request.path == "/health":
            self.checks += 1
        else:
            self.received.append(Received(path=request.path, body=body, headers=_headers(request)))
        await self._notify()
        if self.failures.get(request.path):
            failure = self.failures[request.path].pop(0)
            if failure.drop:
                assert request.transport is not None
                request.transport.abort()
            return web.json_response(failure.body, status=failure.status, headers=failure.headers)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body: Body = request[BODY]
        input_ids, sampling = body.get("input_ids", []), body.get("sampling_params", {})
        problem = refusal(input_ids, sampling)
        if problem:
            return web.json_response({"error": {"message": problem}}, status=400)
        self._count += 1
        generation = Generation(
            rid=body.get("rid") or f"{self._count:032x}",
            input_ids=input_ids,
            sampling=sampling,
            with_logprobs=bool(body.get("return_logprob")),
            reply=self.reply(list(input_ids)),
        )
        await self._running.wait()  # as the real server: what arrives during a pause is not known to the scheduler
        if body.get("stream"):
            return await self._streamed(request, generation)
        await self.run(generation)
        return web.json_response(generation.answer(self.weight_version))

    async def run(self, generation: Generation) -> None:
        """Sample a whole generation; one whose client goes away is aborted."""
        self.generations[generation.rid] = generation
        try:
            while await self._step(generation):
                pass
        except asyncio.CancelledError:
            generation.abort()
            await self._notify()
            raise

    async def _streamed(self, request: web.Request, generation: Generation) -> web.StreamResponse:
        """Server-sent events; each holds everything sampled so far, as the real server sends it by default."""
        self.generations[generation.rid] = generation
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        more = True
        while more:
            try:
                more = await self._step(generation)
            except asyncio.CancelledError:  # the client went away
                generation.abort()
                await self._notify()
                raise
            answer = generation.answer(self.weight_version)
            await response.write(b"data: " + json.dumps(answer, separators=(",", ":")).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _step(self, generation: Generation) -> bool:
        """Sample one token once nothing holds it back; False when the generation has ended."""
        gate = generation.gate()
        if gate is not None:
            await either(gate.wait(), generation.aborted.wait())
        await either(self._running.wait(), generation.aborted.wait())
        generation.step(self.weight_version)
        await self._notify()
        return generation.finish is None

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _model_info(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "model_path": self.model_path,
                "served_model_name": self.model_path,
                "tokenizer_path": self.model_path,
                "is_generation": True,
                "weight_version": self.weight_version,
                "model_type": "qwen3",
                "architectures": ["Qwen3ForCausalLM"],
                "load_format": "auto",
            }
        )

    async def _update(self, request: web.Request) -> web.Response:
        body: Body = request[BODY]
        await self.loading.wait()
        self.model_path = body["model_path"]
        message = "Succeeded to update model weights."
        if body.get("weight_version"):  # without one the old label stays, as in the real server
            self.weight_version = body["weight_version"]
            message += f" Weight version updated to {self.weight_version}."
        return web.json_response({"success": True, "message": message, "num_paused_requests": 0})

    async def _pause(self, request: web.Request) -> web.Response:
        self._running.clear()
        if request[BODY].get("mode", "abort") == "abort":
            self.abort_where(lambda rid: True)
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, request: web.Request) -> web.Response:
        self._running.set()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def _abort(self, request: web.Request) -> web.Response:
        body: Body = request[BODY]
        everything, prefix = bool(body.get("abort_all")), str(body.get("rid", ""))
        self.abort_where(lambda rid: everything or rid == prefix)
        return web.Response()

    def abort_where(self, chosen: Callable[[str], bool]) -> None:
        for generation in self.generations.values():
            if generation.finish is None and chosen(generation.rid):
                generation.aborted.set()

    async def _flush(self, request: web.Request) -> web.Response:
        self.flushes += 1
        return web.Response(
            text="Cache flushed.\nPlease check backend logs for more details. (When there are running or "
            "waiting requests, the operation will not be performed.)\n"
        )


async def either(*waits: Any) -> None:
    """Return when the first of these has finished; the others are cancelled."""
    tasks = [asyncio.ensure_future(w) for w in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def refusal(input_ids: Sequence[int], sampling: Mapping[str, Any]) -> str:
    """Return the real server's reason against this request, or nothing."""
    if not input_ids:
        return "input_ids cannot be empty."
    new = sampling.get("max_new_tokens", 128)
    if len(input_ids) + new > MAX_CONTEXT:
        return (
            f"Requested token count exceeds the model's maximum context length of {MAX_CONTEXT} tokens. "
            f"You requested a total of {len(input_ids) + new} tokens: {len(input_ids)} tokens from the input messages "
            f"and {new} tokens for the completion. Please reduce the number of tokens in the input messages or the "
            "completion to fit within the limit."
        )
    return ""
