"""The engines' HTTP client against real servers: kept connections, deadlines, cancellation, servers that misbehave."""

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway_svc.engines.http import Client, origin
from gateway_svc.engines.http_answer import HttpError

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def client(**given: object) -> AsyncIterator[Client]:
    """One that may connect to anything, unless it is given `reachable`."""
    made = Client(**({"reachable": lambda address, port: True} | given))  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()


@contextlib.asynccontextmanager
async def scripted(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that runs `handler` for every connection; yields its base URL."""

    running: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.add(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await handler(reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.gather(*(task for task in running if task is not None))  # the client is closed: all see an end


async def request_of(reader: asyncio.StreamReader) -> bytes:
    """One whole request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


async def test_a_real_server_sees_a_whole_request_and_its_answers_come_back() -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        made = web.StreamResponse(status=201)
        if request.query.get("chunked"):
            made.enable_chunked_encoding()
        else:
            made.content_length = request.content_length
        await made.prepare(request)
        await made.write(await request.read())
        return made

    app = web.Application(client_max_size=32 << 20)
    app.add_routes([web.post("/base/echo", echo)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}/base/"
    body = bytes(range(256)) * 8192
    try:
        async with client() as made:
            for path in ("/echo", "/echo?chunked=1", "/echo"):
                reply = await made.request("POST", address, path, body, seconds=30)
                assert (reply.status, reply.body) == (201, body)
            assert (await made.request("GET", address, "/none", b"", seconds=30)).status == 404
    finally:
        await runner.cleanup()


async def test_requests_share_a_connection_one_after_another_and_never_at_once() -> None:
    connections = 0
    both = asyncio.Barrier(2)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            if b"/meet" in await request_of(reader):
                await both.wait()
            writer.write(OK)

    async with scripted(handler) as address, client() as made:
        for _ in range(3):
            await made.request("GET", address, "/", b"", seconds=30)
        assert connections == 1
        await asyncio.gather(*(made.request("GET", address, "/meet", b"", seconds=30) for _ in range(2)))
        assert connections == 2


async def test_a_kept_connection_that_the_server_closed_is_replaced_before_anything_is_sent() -> None:
    requests: list[bytes] = []
    closed = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await request_of(reader))
        writer.write(OK)
        await writer.drain()
        if len(requests) == 1:
            writer.close()
            await writer.wait_closed()
            closed.set()
        else:
            await reader.read()

    async with scripted(handler) as address, client() as made:
        await made.request("POST", address, "/first", b"1", seconds=30)
        await closed.wait()
        await made.request("POST", address, "/second", b"2", seconds=30)
    assert [line.split()[1] for line in requests] == [b"/first", b"/second"]


async def test_a_connection_that_breaks_after_the_request_was_sent_is_an_error_and_no_second_request() -> None:
    requests: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await request_of(reader))
        writer.write(OK)
        requests.append(await request_of(reader))

    async with scripted(handler) as address, client() as made:
        await made.request("POST", address, "/", b"1", seconds=30)
        with pytest.raises(HttpError, match="no answer came"):
            await made.request("POST", address, "/", b"2", seconds=30)
    assert len(requests) == 2


async def test_an_old_connection_is_not_used_again() -> None:
    connections = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await request_of(reader)
            writer.write(OK)

    async with scripted(handler) as address, client(kept=0.0) as made:
        for _ in range(2):
            await made.request("GET", address, "/", b"", seconds=30)
    assert connections == 2


@pytest.mark.parametrize("ending", ["deadline", "cancelled"])
async def test_a_request_that_is_given_up_closes_its_connection(ending: str) -> None:
    came, gone = asyncio.Event(), asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        came.set()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        gone.set()

    async with scripted(handler) as address, client() as made:
        asked = asyncio.create_task(
            made.request("POST", address, "/", b"{}", seconds=0.05 if ending == "deadline" else 30)
        )
        await came.wait()
        if ending == "cancelled":
            asked.cancel()
        with pytest.raises(HttpError if ending == "deadline" else asyncio.CancelledError):
            await asked
        await gone.wait()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        OK[:-1],
        b"HTTP/1.1 200 OK\r\na: " + b"x" * 70_000 + b"\r\n\r\n",
        OK.replace(b"2", b"101"),
    ],
    ids=["nothing", "garbage", "cut", "huge head", "too long"],
)
async def test_a_bad_answer_is_an_error_and_the_next_request_gets_a_new_connection(answer: bytes) -> None:
    answers = [answer, OK]

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(answers.pop(0))

    async with scripted(handler) as address, client(body_limit=100) as made:
        with pytest.raises(HttpError):
            await made.request("POST", address, "/", b"{}", seconds=30)
        assert (await made.request("POST", address, "/", b"{}", seconds=30)).body == b"ok"


async def test_bytes_that_nobody_asked_for_do_not_answer_the_next_request() -> None:
    sent = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = b"/first" in await request_of(reader)
        writer.write(OK)
        await writer.drain()
        if first:
            writer.write(OK.replace(b"ok", b"no"))
            await writer.drain()
            sent.set()
        await reader.read()

    async with scripted(handler) as address, client() as made:
        await made.request("GET", address, "/first", b"", seconds=30)
        await sent.wait()
        assert (await made.request("GET", address, "/second", b"", seconds=30)).body == b"ok"


async def test_a_server_that_is_not_there_is_an_error() -> None:
    async with scripted(lambda reader, writer: asyncio.sleep(0)) as address:
        pass
    async with client() as made:
        with pytest.raises(HttpError, match="not connected"):
            await made.request("GET", address, "/", b"", seconds=30)


@pytest.mark.parametrize(
    "address", ["", "host:1", "ftp://host", "http://", "http://host:x", "http://a b", "http://a\n"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(HttpError):
        origin(address)


def test_a_password_in_an_address_is_not_sent_as_the_host() -> None:
    found = origin("https://user:secret@Engine.example/base/")
    assert (found.host, found.port, found.tls) == ("engine.example", 443, True)
    assert (found.path, found.authority) == ("/base", "Engine.example")


async def test_https_is_verified(tmp_path: Path) -> None:
    server, trusting = certificates(tmp_path)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await request_of(reader)
            writer.write(OK)

    async with scripted(handler, server) as address, client(tls=trusting) as made, client() as strict:
        for _ in range(2):
            assert (await made.request("GET", address, "/", b"", seconds=30)).body == b"ok"
        with pytest.raises(HttpError, match="SSLCertVerificationError"):
            await strict.request("GET", address, "/", b"", seconds=30)


async def test_https_is_verified_for_the_name_and_not_for_the_address_that_it_leads_to(tmp_path: Path) -> None:
    server, trusting = certificates(tmp_path)

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with scripted(hello, server) as address, client(tls=trusting, resolve=resolve) as made:
        with pytest.raises(HttpError, match="SSLCertVerificationError"):
            await made.request("GET", on(address, "engine.test"), "/", b"", seconds=30)


def certificates(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate for 127.0.0.1, and a client's that trusts it."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "engine")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = folder / "engine.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return server, ssl.create_default_context(cafile=str(file))


async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await request_of(reader)
    writer.write(OK)


def on(address: str, host: str) -> str:
    """The URL with another host."""
    return address.replace("127.0.0.1", host)


async def test_a_name_is_connected_to_at_an_address_that_is_allowed_and_is_asked_again_for_every_connection() -> None:
    answers = [["127.0.0.2", "127.0.0.1"], ["127.0.0.2"]]
    asked: list[tuple[str, int]] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return answers[len(asked) - 1]

    def reachable(address: str, port: int) -> bool:
        return address == "127.0.0.1"

    connections = 0

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await hello(reader, writer)

    async with scripted(counted) as address, client(resolve=resolve, reachable=reachable, kept=0.0) as made:
        url = on(address, "engine.test")
        assert (await made.request("GET", url, "/", b"", seconds=60)).body == b"ok"
        with pytest.raises(HttpError, match=r"engine\.test leads to 127\.0\.0\.2, which .*engine\.allowed"):
            await made.request("GET", url, "/", b"", seconds=60)
        assert asked == [("engine.test", int(address.rpartition(":")[2]))] * 2
    assert connections == 1


async def test_an_address_that_is_not_allowed_is_not_connected_to() -> None:
    came = asyncio.Event()

    async def caught(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with scripted(caught) as address, client(resolve=resolve, reachable=lambda *_: False) as made:
        for host in ("engine.test", "127.0.0.1"):
            with pytest.raises(HttpError, match="does not allow"):
                await made.request("GET", on(address, host), "/", b"", seconds=60)
    assert not came.is_set()


async def test_the_next_address_is_tried_where_one_takes_no_connection() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.9", "127.0.0.1"]

    async with scripted(hello) as address, client(resolve=resolve) as made:
        assert (await made.request("GET", on(address, "engine.test"), "/", b"", seconds=60)).status == 200


async def test_a_name_that_nobody_knows_is_an_error() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise OSError

    async with client(resolve=resolve) as made:
        with pytest.raises(HttpError, match="not connected"):
            await made.request("GET", "http://engine.test", "/", b"", seconds=60)


@pytest.mark.parametrize("host", ["a" * 64, "a..b", ".a"])
async def test_what_can_be_no_name_is_an_error(host: str) -> None:
    async with client() as made:
        with pytest.raises(HttpError, match="not connected"):
            await made.request("GET", f"http://{host}", "/", b"", seconds=60)
