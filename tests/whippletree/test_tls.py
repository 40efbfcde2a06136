"""Servers and channels with certificates made here: who is let in; a renewed one is used without a new start."""

import asyncio
import contextlib
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import ValidationError

from tests.fakes.certificates import Authority, authority, lets_in
from whippletree.channel import connect
from whippletree.http_door import HttpDoor
from whippletree.serve import listening
from whippletree.settings import AccessSettings, ClientTls, Section, ServerTls
from whippletree.tls import server_context

NO_HANDSHAKE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return authority(tmp_path / "ours")


async def asked(address: str, tls: ClientTls | None) -> grpc.StatusCode:
    """How the question for health ends."""
    access = None if tls is None else AccessSettings(tls=tls)
    async with connect(address, access) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


@asynccontextmanager
async def serving(tls: ServerTls) -> AsyncIterator[str]:
    """The address of a server."""
    async with listening([], "127.0.0.1:0", grace=0, tls=tls) as port:
        yield f"127.0.0.1:{port}"


async def test_a_client_that_trusts_the_authority_is_served(ours: Authority) -> None:
    async with serving(ours.server()) as address:
        assert await asked(address, ours.client()) == grpc.StatusCode.OK
        assert await asked(address, ours.client(server_name="")) == grpc.StatusCode.OK  # by its address


async def test_others_are_not(ours: Authority, tmp_path: Path) -> None:
    strangers = authority(tmp_path / "strangers")
    async with serving(ours.server()) as address:
        assert await asked(address, None) == NO_HANDSHAKE
        assert await asked(address, strangers.client()) == NO_HANDSHAKE
        assert await asked(address, ours.client(server_name="other.test")) == NO_HANDSHAKE


async def test_a_server_may_ask_its_clients_for_certificates(ours: Authority, tmp_path: Path) -> None:
    strangers = authority(tmp_path / "strangers")
    certificate, key = strangers.sign("bridge")
    forged = ours.client().model_copy(update={"certificate": certificate, "key": key})
    async with serving(ours.server(mutual=True)) as address:
        assert await asked(address, ours.client("bridge")) == grpc.StatusCode.OK
        assert await asked(address, ours.client()) == NO_HANDSHAKE
        assert await asked(address, forged) == NO_HANDSHAKE


async def test_a_renewed_certificate_is_used_by_the_next_connection(ours: Authority, tmp_path: Path) -> None:
    renewed_by = authority(tmp_path / "renewed")
    tls, fresh = ours.server(), renewed_by.server()
    assert tls.certificate
    assert tls.key
    assert fresh.certificate
    assert fresh.key
    async with serving(tls) as address:
        assert await asked(address, ours.client()) == grpc.StatusCode.OK
        shutil.copy(fresh.certificate, tls.certificate)
        shutil.copy(fresh.key, tls.key)
        assert await asked(address, renewed_by.client()) == grpc.StatusCode.OK
        assert await asked(address, ours.client()) == NO_HANDSHAKE


def test_files_that_hold_no_certificate_are_named(ours: Authority) -> None:
    tls = ours.server()
    assert tls.key
    for text in ("", "nothing"):
        tls.key.write_text(text)
        with pytest.raises(OSError, match=str(tls.key)):
            server_context(tls)
    tls.key.unlink()
    with pytest.raises(OSError, match=str(tls.key)):
        server_context(tls)


@asynccontextmanager
async def by_http(tls: ServerTls) -> AsyncIterator[str]:
    """The URL at which a server's plain HTTP says that it is well."""
    door = HttpDoor([], "127.0.0.1:0", server_context(tls))
    async with listening([], "127.0.0.1:0", grace=0, tls=tls, doors=[door]):
        yield f"https://127.0.0.1:{door.port}/healthz"


async def test_by_http_the_same_are_let_in(ours: Authority, tmp_path: Path) -> None:
    strangers = authority(tmp_path / "strangers")
    async with by_http(ours.server(mutual=True)) as url, httpx.AsyncClient() as client:
        assert await lets_in(url, ours, shown=ours)
        assert not await lets_in(url, ours)
        assert not await lets_in(url, ours, shown=strangers)
        assert not await lets_in(url, strangers, shown=ours)
        with pytest.raises(httpx.TransportError):
            await client.get(url.replace("https", "http"))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_by_http_no_session_outlives_the_authority_that_let_it_in(
    ours: Authority, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    tls = ours.server(mutual=True)
    trust = ssl.create_default_context(cafile=str(ours.path))
    trust.minimum_version = trust.maximum_version = version
    trust.load_cert_chain(*ours.sign("client"))

    def asks(url: str, session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None]:
        """(Beginning of the answer, the session to be resumed)."""
        at = urlsplit(url)
        with (
            contextlib.suppress(OSError),
            socket.create_connection((at.hostname, at.port or 0), timeout=60) as plain,
            trust.wrap_socket(plain, server_hostname=at.hostname, session=session) as secured,
        ):
            secured.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            return secured.recv(12), secured.session
        return b"", None

    async with by_http(tls) as url:
        said, session = await asyncio.to_thread(asks, url, None)
        assert said == b"HTTP/1.1 200"
        shutil.copy(authority(tmp_path / "renewed").path, ours.path)
        assert (await asyncio.to_thread(asks, url, session))[0] == b""


async def test_by_http_a_renewed_certificate_and_a_renewed_authority_hold_for_the_next_connection(
    ours: Authority, tmp_path: Path
) -> None:
    renewed_by = authority(tmp_path / "renewed")
    tls, fresh = ours.server(mutual=True), renewed_by.server()
    assert tls.certificate
    assert tls.key
    assert fresh.certificate
    assert fresh.key
    async with by_http(tls) as url:
        assert await lets_in(url, ours, shown=ours)
        tls.key.write_text("half of a change")
        assert await lets_in(url, ours, shown=ours)
        shutil.copy(fresh.certificate, tls.certificate)
        shutil.copy(fresh.key, tls.key)
        assert await lets_in(url, renewed_by, shown=ours)
        shutil.copy(renewed_by.path, ours.path)  # which the server asks of its clients
        assert await lets_in(url, renewed_by, shown=renewed_by)
        assert not await lets_in(url, renewed_by, shown=ours)


@pytest.mark.parametrize(
    ("kind", "fields", "fault"),
    [
        (ServerTls, {"certificate": "a"}, "go together"),
        (ServerTls, {"key": "a"}, "go together"),
        (ServerTls, {"client_authority": "a"}, "client_authority needs certificate"),
        (ClientTls, {"authority": "a", "key": "b"}, "go together"),
        (ClientTls, {"certificate": "a", "key": "b"}, "certificate needs authority"),
    ],
)
def test_half_of_the_settings_is_an_error(kind: type[Section], fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        kind(**fields)
