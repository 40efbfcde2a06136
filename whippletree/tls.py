"""Certificates from files to gRPC's credentials, for servers and for clients."""

from pathlib import Path

import grpc

from whippletree.settings import ClientTls, ServerTls


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials | None:
    """Credentials whose files are looked at again for every new connection; None = no TLS. OSError."""
    if tls.certificate is None:
        return None
    seen = _signature(tls)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """What a file's change makes of it; None = no change."""
        nonlocal seen
        try:
            now = _signature(tls)
            if now == seen:
                return None
            made = _certificates(tls)
        except OSError:
            return None  # half of a change; the next connection looks again
        seen = now
        return made

    return grpc.dynamic_ssl_server_credentials(
        _certificates(tls),
        fetch,  # type: ignore[arg-type]  # None is allowed, as its documentation says
        require_client_authentication=tls.client_authority is not None,
    )


def channel_credentials(tls: ClientTls) -> grpc.ChannelCredentials | None:
    """Credentials of a client; None = no TLS. OSError."""
    if tls.authority is None:
        return None
    return grpc.ssl_channel_credentials(_bytes(tls.authority), _bytes(tls.key), _bytes(tls.certificate))


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
