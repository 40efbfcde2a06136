"""A second way into a server: its rpcs with raw bodies as plain HTTP/1.1, where Envoy sends harnesses' calls.

Over gRPC such a call costs a transcoder in Envoy, and in Python a wake-up of other threads at each of its steps: a
third of all that it takes. What is called is the same: the method within the layers that the server lays around it, so
keys, limits, ids, metrics, errors and the stop are those of the rpc.

An answer is what the method yields. One JSON body is one message and goes out whole; `x-http-code` and other initial
metadata become headers, for Envoy's filter to read. A status without a message becomes JSON of google.rpc.Status. An
answer that fails after its beginning ends with the connection: in chunks, only a last one is an end.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, NoReturn

import grpc
import orjson
from aiohttp import web
from google.api.httpbody_pb2 import HttpBody
from grpc_health.v1 import health_pb2

from whippletree.channel import MESSAGE_LIMIT
from whippletree.errors import InvalidFieldError, RequestTooLargeError
from whippletree.http_rules import HttpRules
from whippletree.methods import Methods
from whippletree.stop import WRITING

log = logging.getLogger(__name__)
JSON = "application/json"
HEALTH = "/healthz"
"""GET: 200 while the server is SERVING, 503 otherwise."""
CHECK = "/grpc.health.v1.Health/Check"
HEADERS = 128 << 10
"""Bytes of one header, or of the path: more than Envoy lets through in all."""
KEPT = 7200.0
"""Seconds for which an idle connection stays; Envoy closes its own earlier, or it would ask into a closed one."""
BACKLOG = 4096
"""Connections that wait to be accepted: every call under way has one, and thousands may begin at once."""

STATUS: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
"""As google/rpc/code.proto has it; what is missing is 500."""
CODE = "x-http-code"
"""Initial metadata that says the HTTP status."""
TOLD = ("whippletree-told", "true")
"""Trailing metadata of a failure that the answer's last message has told: such an answer may end as others do."""
UNHEARD = logging.Logger("aiohttp.server", logging.CRITICAL)
"""What aiohttp says of requests that it cannot read quotes them, and may quote a token."""
UNKNOWN_URL = "Unknown request URL. Please check the URL for typos."


Metadata = Sequence[tuple[str, str | bytes]]


class HttpDoor:
    """Plain HTTP/1.1 on an address of its own."""

    def __init__(
        self, services: Sequence[str], address: str, tls: ssl.SSLContext | None = None, *, limit: int = MESSAGE_LIMIT
    ) -> None:
        """`services` are full names; `address` is host:port, port 0 = any free one; `limit` is of a body, bytes."""
        self._rules, self._address, self._tls, self._limit = HttpRules(services), address, tls, limit
        self._stack = contextlib.AsyncExitStack()
        self._answers: _Answers | None = None
        self.port = 0
        """Once it is open."""

    async def open(self, methods: Methods) -> None:
        """Let calls in to these methods. OSError where the address is in use."""
        host, port = _place(self._address)
        loop = asyncio.get_running_loop()
        answers = self._answers = _Answers(self._rules, methods, self._limit)
        server = web.Server(
            answers.answer,
            handler_cancellation=True,  # whose caller goes away
            keepalive_timeout=KEPT,
            access_log=None,  # Envoy has one
            logger=UNHEARD,
            max_headers=256,
            max_line_size=HEADERS,
            max_field_size=HEADERS,
            auto_decompress=False,  # the bridge does, and bounds it
        )
        try:
            # As gRPC does: one port, and `::` is both families.
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            bound = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=host == "::")
            listener = await loop.create_server(server, sock=bound, ssl=self._tls, backlog=BACKLOG)
        except OSError as error:
            raise OSError(f"cannot listen on {self._address}: {error.strerror or error}") from error
        self.port = bound.getsockname()[1]
        self._stack.push_async_callback(server.shutdown, WRITING / 2)  # it waits so long twice
        self._stack.callback(server.pre_shutdown)  # idle connections; the others end after their answers
        self._stack.callback(listener.close)

    def leave(self) -> None:
        """From now on every answer ends its connection: whoever calls again finds another server, or sees that there is
        none. A connection that closes while it is asked something would leave it open what became of that."""
        if self._answers is not None:
            self._answers.last = True

    async def close(self) -> None:
        """Let nobody in; what is being written may end."""
        await self._stack.aclose()


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not (port.isdecimal() and int(port) < 65_536):
        raise OSError(f"cannot listen on {address}: it is no host:port")
    return host.strip("[]"), int(port)


class _Answers:
    """HTTP requests to methods, their messages to HTTP answers."""

    def __init__(self, rules: HttpRules, methods: Methods, limit: int) -> None:
        self._rules, self._methods, self._limit = rules, methods, limit
        self.last = False
        """Every answer is its connection's last one."""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to one request; what is not written yet aiohttp writes."""
        try:
            response = await self._answer(request)
        except ConnectionError:
            raise  # whoever asked went away
        except Exception:
            log.exception("unforeseen failure")
            if request.writer.output_size:
                request.protocol.force_close()  # an answer has begun; a second one must not be taken for its rest
                raise
            response = status(grpc.StatusCode.INTERNAL, "internal error")
        return response if response.prepared else self._in_its_connection(response)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        if path == HEALTH and request.method == "GET":
            return await self._health()
        if (found := self._rules.find(request.method, path)) is None:
            return status(grpc.StatusCode.NOT_FOUND, UNKNOWN_URL)
        rule, match = found
        context = HttpContext([(name.lower(), text_of(value)) for name, value in request.headers.items()])
        kind = text_of(request.headers.get("content-type", ""))
        method = self._methods.find(rule.rpc).unary_stream
        try:
            parts = method(rule.request(match, await body(request, self._limit), kind), context)
        except RequestTooLargeError as error:
            return status(error.code, error.message, http=413)
        except InvalidFieldError as error:
            return status(error.code, error.message)
        try:
            return await self._written(request, context, parts)
        finally:
            context.done()

    async def _health(self) -> web.StreamResponse:
        check = self._methods.find(CHECK).unary_unary
        answer = await check(health_pb2.HealthCheckRequest(), HttpContext(()))
        return web.Response(status=200 if answer.status == health_pb2.HealthCheckResponse.SERVING else 503)

    async def _written(
        self, request: web.BaseRequest, context: "HttpContext", parts: AsyncGenerator[HttpBody, None]
    ) -> web.StreamResponse:
        """Write what a method yields, each message before it goes on: all but 64 KiB are with the kernel then."""
        response: web.StreamResponse | None = None
        try:
            async with contextlib.aclosing(parts):
                async for part in parts:
                    if response is None:
                        response = await self._begun(request, context, part)
                    else:
                        await response.write(part.data)
        except Aborted:
            if response is None:
                return status(context.code(), context.details(), context.trailing)
            if TOLD not in context.trailing and not isinstance(response, web.Response):
                request.protocol.force_close()  # what was written goes out, an end does not
                return response
        if response is None:
            return status(grpc.StatusCode.INTERNAL, "The service did not answer.")
        await response.write_eof()
        return response

    async def _begun(self, request: web.BaseRequest, context: "HttpContext", part: HttpBody) -> web.StreamResponse:
        """An answer with its first message; a JSON body is whole with it."""
        headers = {**dict(context.initial), "content-type": part.content_type}
        code = int(headers.get(CODE, 200))
        if part.content_type == JSON:
            whole = self._in_its_connection(web.Response(status=code, headers=headers, body=part.data))
            await whole.prepare(request)
            await whole.write_eof()
            return whole
        stream = self._in_its_connection(web.StreamResponse(status=code, headers=headers))
        await stream.prepare(request)
        await stream.write(part.data)
        return stream

    def _in_its_connection(self, response: web.StreamResponse) -> web.StreamResponse:
        if self.last:
            response.force_close()
        return response


def text_of(value: str) -> str:
    """A header's value, which aiohttp has taken for UTF-8; where it is none, its bytes are characters."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode(errors="surrogateescape").decode("latin-1")
    return value


async def body(request: web.BaseRequest, limit: int) -> bytes:
    """The whole body. RequestTooLargeError beyond `limit` bytes."""
    chunks, size = [], 0
    async for chunk in request.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise RequestTooLargeError(f"The body is larger than {limit} bytes.")
    return b"".join(chunks)


def status(code: grpc.StatusCode, message: str, trailing: Metadata = (), *, http: int | None = None) -> web.Response:
    """google.rpc.Status without its details, which Envoy's filter has no use for, and metadata as headers."""
    number: int = code.value[0]
    headers = {name: value for name, value in trailing if isinstance(value, str)}
    text = orjson.dumps({"code": number, "message": message, "details": []})
    return web.Response(status=http or STATUS.get(code, 500), headers={**headers, "content-type": JSON}, body=text)


class Aborted(grpc.aio.AbortError):
    """Raised by a context that was told to end its call."""


class HttpContext:
    """What a servicer and its layers may ask of a call that came as plain HTTP; all else of grpc.aio's is missing."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._callbacks: list[Callable[[Any], None]] = []
        self._code = grpc.StatusCode.OK
        self._details = ""
        self.initial: list[tuple[str, str | bytes]] = []
        """Sent before the first message."""
        self.trailing: list[tuple[str, str | bytes]] = []
        """Sent with the status."""

    def invocation_metadata(self) -> Metadata:
        """The request's headers, their names in small letters."""
        return self._metadata

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call this when the call has ended, whoever ended it."""
        self._callbacks.append(callback)

    def done(self) -> None:
        """Called by the door."""
        while self._callbacks:
            self._callbacks.pop()(self)

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """To be sent with the first message."""
        self.initial.extend(metadata)

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """To be sent with the status."""
        self.trailing.extend(metadata)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """End the call with a status."""
        self._code, self._details = code, details
        self.trailing.extend(trailing_metadata)
        raise Aborted

    async def abort_with_status(self, status: grpc.Status) -> NoReturn:
        """End the call with a status."""
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    def code(self) -> grpc.StatusCode:
        """Of the status; OK where none was set."""
        return self._code

    def details(self) -> str:
        """Of the status."""
        return self._details
