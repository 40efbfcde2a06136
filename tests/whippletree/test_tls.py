"""Servers and channels with certificates made here: who is let in; a renewed one is used without a new start."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import ValidationError

from tests.fakes.certificates import Authority, authority
from whippletree.channel import connect
from whippletree.serve import listening
from whippletree.settings import AccessSettings, ClientTls, Section, ServerTls

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
