"""Which addresses an engine may have: the gateway sends requests there, so whoever registers an engine must not choose
freely what it reaches.

In: the operator's patterns, and the URL of an engine that is registered (`check`) or, for every new connection, an
address that its host was resolved to (`reachable`). Names are compared and never looked up here.
A pattern is `HOST` or `HOST:PORT` or `HOST:LOW-HIGH`; HOST is an address, a network (`127.0.0.0/8`, `[fd00::]/8`), a
name, or a name with `*` for its first part (`*.engines.example`). Refused whatever the patterns say: link-local,
multicast and unspecified addresses, the others at which clouds serve metadata with their secrets (`METADATA`), and
IPv6 addresses that hold one of these of IPv4.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from whippletree.errors import InvalidFieldError

LOOPBACK = ("127.0.0.0/8", "[::1]", "localhost")
"""This machine."""
METADATA = (ip_network("fd00:ec2::/32"), ip_network("100.100.100.200"))
"""Amazon's and Alibaba's services for their machines, where they are not link-local."""
NAT64, COMPATIBLE = IPv6Network("64:ff9b::/96"), IPv6Network("::/96")
"""IPv6 addresses that end with an IPv4 address."""
PORTS = range(1, 65536)
_PATTERN = re.compile(r"(?P<host>\[[0-9a-f:.]+\](/\d+)?|[a-z0-9.*_-]+(/\d+)?)(:(?P<ports>\d+(-\d+)?))?")
_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
"""What DNS can be asked for."""

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One pattern, parsed: a network, or a name."""

    network: IPv4Network | IPv6Network | None
    name: str
    ports: range

    def matches(self, host: str | Address, port: int) -> bool:
        """Whether it allows this place."""
        if port not in self.ports:
            return False
        if not isinstance(host, str):
            return self.network is not None and host in self.network
        if self.name.startswith("*."):
            return host.partition(".")[2] == self.name[2:]
        return self.network is None and host == self.name


def pattern(text: str) -> Pattern:
    """Parse one. Raises ValueError."""
    found = _PATTERN.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is not HOST, HOST:PORT or HOST:LOW-HIGH")
    host, ports = found["host"], found["ports"] or ""
    return Pattern(network=_network(host), name=host, ports=_range(ports))


def check(url: str, patterns: Sequence[Pattern], field: str) -> None:
    """Raise InvalidFieldError where an engine may not be at this URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise InvalidFieldError(f"{field} {url!r} is no URL", field=field) from error
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidFieldError(f"{field} {url!r} is no http URL", field=field)
    if parts.username is not None or parts.query or parts.fragment or any(one.isspace() for one in url):
        raise InvalidFieldError(f"{field} {url!r} has more than scheme, host, port and path", field=field)
    place = _place(host)
    if isinstance(place, str) and not _NAME.fullmatch(place):
        raise InvalidFieldError(f"{field} {url!r}: {host!r} is neither an address nor a name", field=field)
    if not isinstance(place, str) and _never(place):
        raise InvalidFieldError(f"{field} {url!r}: no engine may be at {host}", field=field)
    if not any(one.matches(place, port) for one in patterns):
        text = f"{field} {url!r}: the gateway's setting engine.allowed does not allow {host}:{port}"
        raise InvalidFieldError(text, field=field)


def reachable(address: str, port: int, patterns: Sequence[Pattern]) -> bool:
    """Whether an engine may be asked at a numeric address, whatever name led there.

    Where the patterns hold networks one of them must hold it; those that are names alone say nothing of addresses.
    """
    place = _place(address)
    if isinstance(place, str) or _never(place):
        return False
    networks = [one for one in patterns if one.network is not None]
    return not networks or any(one.matches(place, port) for one in networks)


def _never(place: Address) -> bool:
    place = _embedded(place) or place
    return (
        place.is_link_local
        or place.is_multicast
        or place.is_unspecified
        or any(place in network for network in METADATA)
    )


def _embedded(place: Address) -> IPv4Address | None:
    """The IPv4 address that NAT64, 6to4 or the IPv4-compatible form holds. Mapped ones are unwrapped by `_place`."""
    if isinstance(place, IPv4Address):
        return None
    if place in NAT64 or (place in COMPATIBLE and not place.is_loopback):
        return IPv4Address(place.packed[12:])
    return place.sixtofour


def _place(host: str) -> str | Address:
    """An address where the text is one, of an IPv4-mapped one that of IPv4; else the name."""
    try:
        found = ip_address(host)
    except ValueError:
        return host.removesuffix(".")
    return getattr(found, "ipv4_mapped", None) or found


def _network(host: str) -> IPv4Network | IPv6Network | None:
    bare = host.replace("[", "").replace("]", "")
    try:
        return ip_network(bare)
    except ValueError:
        if "/" in bare or ":" in bare:
            raise
        return None


def _range(ports: str) -> range:
    if not ports:
        return PORTS
    low, _, high = ports.partition("-")
    found = range(int(low), int(high or low) + 1)
    if not found or found[0] not in PORTS or found[-1] not in PORTS:
        raise ValueError(f"{ports!r} is no port and no range of ports")
    return found
