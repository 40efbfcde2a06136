"""Certificates from files to gRPC's credentials, for servers and for clients, and to contexts of Python's `ssl`."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import grpc

from whippletree.settings import ClientTls, ServerTls

T = TypeVar("T")


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials | None:
    """Credentials whose files are looked at again for every new connection; None = no TLS. OSError."""
    if tls.certificate is None:
        return None
    renewed = _renewal(tls, _certificates)
    return grpc.dynamic_ssl_server_credentials(
        _certificates(tls),
        renewed,  # type: ignore[arg-type]  # None is allowed, as its documentation says
        require_client_authentication=tls.client_authority is not None,
    )


def server_context(tls: ServerTls) -> ssl.SSLContext | None:
    """The same for a server that is not gRPC's: its files are looked at again for every new connection. OSError."""
    if tls.certificate is None:
        return None
    renewed, first = _renewal(tls, _context), _context(tls)
    made = first

    def look(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context_of: ssl.SSLContext) -> None:
        """Called at the beginning of every handshake."""
        nonlocal made
        made = renewed() or made
        connection.context = made

    first.options |= ssl.OP_NO_TICKET  # a resumed session is not verified again, against new authorities least of all
    first.num_tickets = 0
    first.sni_callback = look
    return first


def channel_credentials(tls: ClientTls) -> grpc.ChannelCredentials | None:
    """Credentials of a client; None = no TLS. OSError."""
    if tls.authority is None:
        return None
    return grpc.ssl_channel_credentials(_bytes(tls.authority), _bytes(tls.key), _bytes(tls.certificate))


def _renewal(tls: ServerTls, make: Callable[[ServerTls], T]) -> Callable[[], T | None]:
    """A function that says what a change of the files has made of them; None = no change since it was asked last."""
    seen = _signature(tls)

    def renewed() -> T | None:
        nonlocal seen
        try:
            now = _signature(tls)
            if now == seen:
                return None
            made = make(tls)
        except OSError:  # ssl.SSLError is one
            return None  # half of a change; the next connection looks again
        seen = now
        return made

    return renewed


def _context(tls: ServerTls) -> ssl.SSLContext:
    assert tls.certificate is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certificate, tls.key)
        if tls.client_authority is not None:
            context.load_verify_locations(tls.client_authority)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # it names no file
        files = ", ".join(str(file) for file in (tls.certificate, tls.key, tls.client_authority) if file is not None)
        raise OSError(f"TLS cannot be had from {files}: {error}") from error
    return context


def _certificates(tls: ServerTls) -> grpc.ServerCertificateConfiguration:
    assert tls.key is not None
    assert tls.certificate is not None
    pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=_bytes(tls.client_authority))


def _signature(tls: ServerTls) -> tuple[tuple[int, int], ...]:
    paths = [path for path in (tls.certificate, tls.key, tls.client_authority) if path is not None]
    return tuple(((stat := path.stat()).st_mtime_ns, stat.st_ino) for path in paths)


def _bytes(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()
