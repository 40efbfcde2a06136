"""Makes an `ssl.SSLContext` read its certificate files when it is first used, not when they are named.

An HTTP client reads the system's hundred-odd certificates when it is made, 30 ms of processor time, also where it will
only speak plain HTTP to the loopback address. With this module the same files are read at the first handshake, or when
somebody looks. What is lost: a broken file is noticed no sooner than that; a missing one is still noticed at once.
"""

import os
import ssl
from typing import Any

_Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
_load = ssl.SSLContext.load_verify_locations
_PENDING = "_certificates_to_read"


def _defer(
    self: ssl.SSLContext,
    cafile: _Path | None = None,
    capath: _Path | None = None,
    cadata: Any = None,
) -> None:
    """Stands for `load_verify_locations`."""
    files_exist = all(path is None or os.path.exists(path) for path in (cafile, capath))  # noqa: PTH110  # bytes too
    if cadata is not None or not files_exist or (cafile is None and capath is None):
        _load(self, cafile, capath, cadata)
        return
    pending = self.__dict__.setdefault(_PENDING, [])
    pending.append((os.path.abspath(cafile) if cafile else None, os.path.abspath(capath) if capath else None))  # noqa: PTH100


def _settle(self: ssl.SSLContext) -> None:
    """Read what was put off."""
    for cafile, capath in self.__dict__.pop(_PENDING, ()):
        _load(self, cafile, capath)


def _settled_first(name: str) -> None:
    """Let a method of SSLContext see the certificates."""
    method = getattr(ssl.SSLContext, name)

    def settled(self: ssl.SSLContext, *arguments: Any, **named: Any) -> Any:
        _settle(self)
        return method(self, *arguments, **named)

    settled.__name__, settled.__doc__ = method.__name__, method.__doc__
    setattr(ssl.SSLContext, name, settled)


def install() -> None:
    """Change `ssl.SSLContext` in this process; once."""
    if ssl.SSLContext.load_verify_locations is not _load:
        return
    for name in ("_wrap_socket", "_wrap_bio", "get_ca_certs", "cert_store_stats"):
        _settled_first(name)
    ssl.SSLContext.load_verify_locations = _defer  # type: ignore[method-assign]


install()
