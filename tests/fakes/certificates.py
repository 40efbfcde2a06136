"""Certificates for tests of TLS: an authority, and what it signs."""

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from whippletree.settings import ClientTls, ServerTls

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """Signs certificates; `path` is its own."""

    path: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def sign(self, name: str) -> tuple[Path, Path]:
        """Files of a new certificate and its key, for `name` and for 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = _builder(name, self.certificate.subject, key)
        made = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = made.sign(self.key, hashes.SHA256())
        folder = self.path.parent
        paths = folder / f"{name}.{certificate.serial_number}.pem", folder / f"{name}.{certificate.serial_number}.key"
        paths[0].write_bytes(certificate.public_bytes(Encoding.PEM))
        paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return paths

    def server(self, name: str = "whippletree.test", *, mutual: bool = False) -> ServerTls:
        """Settings of a server; `mutual` = its clients must show a certificate of this authority."""
        certificate, key = self.sign(name)
        return ServerTls(certificate=certificate, key=key, client_authority=self.path if mutual else None)

    def client(self, name: str = "", *, server_name: str = "whippletree.test") -> ClientTls:
        """Settings of a client, with a certificate of its own where it has a name."""
        certificate, key = self.sign(name) if name else (None, None)
        return ClientTls(authority=self.path, certificate=certificate, key=key, server_name=server_name)


def authority(folder: Path, name: str = "authority") -> Authority:
    """A new one."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    basic = x509.BasicConstraints(ca=True, path_length=None)
    certificate = _builder(name, subject, key).add_extension(basic, critical=True).sign(key, hashes.SHA256())
    path = folder / f"{name}.pem"
    path.write_bytes(certificate.public_bytes(Encoding.PEM))
    return Authority(path=path, certificate=certificate, key=key)


async def lets_in(url: str, trusted: Authority, *, shown: Authority | None = None) -> bool:
    """Whether a client is answered that trusts one authority and shows a certificate of one, or none."""
    trust = ssl.create_default_context(cafile=str(trusted.path))
    if shown is not None:
        trust.load_cert_chain(*shown.sign("client"))
    async with httpx.AsyncClient(verify=trust, timeout=60) as client:
        try:
            return (await client.get(url)).status_code == 200
        except (httpx.TransportError, ssl.SSLError):  # after the handshake it is the second
            return False


def _builder(name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - DAY,
        not_valid_after=now + DAY,
    )
