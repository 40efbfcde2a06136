"""One connection to an engine: carries one request at a time, and knows whether it can carry another."""

import asyncio
import select
import socket
from typing import cast

from gateway_svc.engines.http_answer import Answer, HttpError

_PROBES = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""A host that vanishes during a generation is noticed after a minute."""


class Connection(asyncio.Protocol):
    """See the module; made by `create_connection`. `since` = when it was last used."""

    transport: asyncio.Transport
    since = 0.0
    _answer: Answer | None = None
    _done: "asyncio.Future[Answer]"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are of no such class
        sock = transport.get_extra_info("socket")
        self._descriptor: int = sock.fileno()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _PROBES:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def quiet(self) -> bool:
        """Whether it is open and nothing came unasked; an end of the stream, too, is something to read."""
        if self.transport.is_closing():
            return False
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return not poll.poll(0)

    async def exchange(self, data: bytes, body_limit: int) -> Answer:
        """Send one request, wait for its answer. Whatever ends the wait before closes the connection."""
        self._answer, self._done = Answer(body_limit), asyncio.get_running_loop().create_future()
        try:
            self.transport.write(data)
            return await self._done
        except BaseException:
            self.transport.abort()
            raise
        finally:
            self._answer = None

    def data_received(self, data: bytes) -> None:
        if (answer := self._answer) is None or self._done.done():
            self.transport.abort()  # nobody asked
            return
        try:
            answer.feed(data)
        except HttpError as error:
            self._done.set_exception(error)
        else:
            if answer.body is not None:
                self._done.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        if (answer := self._answer) is None or self._done.done():
            return
        try:
            if error is not None:
                raise HttpError(f"the connection broke ({type(error).__name__})")
            answer.end()
        except HttpError as problem:
            self._done.set_exception(problem)
        else:
            self._done.set_result(answer)
