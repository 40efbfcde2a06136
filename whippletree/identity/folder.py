"""The gateway's folder of keys: `signing/KID.pem` signs tokens, `operators.json` has digests of operators' keys.

Changed by commands, or by whatever mounts it, and read again within a second: no service is started anew. A signing
key's id begins with its time of creation, and the newest that every verifier must know by now signs; older ones go on
to verify until their file is removed.
"""

import json
import logging
import os
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from whippletree.identity.operator_keys import OperatorKey, new_key
from whippletree.identity.tokens import SigningKey

log = logging.getLogger(__name__)
SETTLING = 120.0
"""Seconds for which a new signing key is only published: Envoy and the services read the set again every minute."""
LOOK_EVERY = 1.0
"""Seconds between two looks at the folder."""
_TIME = "%Y%m%dt%H%M%Sz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What the folder holds."""

    signing: tuple[SigningKey, ...]
    """Oldest first."""
    public: Mapping[str, Ed25519PublicKey]
    """By key id."""
    operators: Mapping[str, OperatorKey]
    """By key id."""

    def signer(self, now: float) -> SigningKey:
        """The newest that has settled; where none has, the oldest."""
        settled = [key for key in self.signing if created(key.kid) + SETTLING <= now]
        return settled[-1] if settled else self.signing[0]


class KeyFolder:
    """The keys as they are now; also the `PublicKeys` of the gateway's own verifier."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        """`clock`: seconds since 1970 UTC. OSError or ValueError as `read`."""
        self._folder, self._clock = folder, clock
        self._seen = _signature(folder)
        self._looked, self._keys = clock(), read(folder)
        self._trouble = ""

    @property
    def keys(self) -> Keys:
        """What the folder held at most a second ago. While a file in it is broken, what it held before."""
        if abs(self._clock() - self._looked) >= LOOK_EVERY:
            self._look()
        return self._keys

    def find(self, kid: str) -> Ed25519PublicKey | None:
        """The public key of an id."""
        return self.keys.public.get(kid)

    async def refresh(self) -> None:
        """Look now."""
        self._look()

    def _look(self) -> None:
        self._looked = self._clock()
        try:
            if (seen := _signature(self._folder)) != self._seen:
                self._keys, self._seen = read(self._folder), seen
        except (OSError, ValueError) as error:  # half of a change, or a file that is broken: it is looked at again
            if str(error) != self._trouble:
                log.warning("the keys stay as they were until their folder can be read: %s", error)
            self._trouble = str(error)
        else:
            self._trouble = ""


def read(folder: Path) -> Keys:
    """The folder's content. OSError or ValueError where there is no signing key or a file is broken."""
    signing = tuple(_signing_key(path) for path in sorted((folder / "signing").glob("*.pem")))
    if not signing:
        raise ValueError(f"no signing key in {folder / 'signing'}; make one with `whippletree keys rotate`")
    operators = read_operators(folder)
    public = {key.kid: key.private.public_key() for key in signing}
    return Keys(signing=signing, public=public, operators={key.key_id: key for key in operators})


def read_operators(folder: Path) -> list[OperatorKey]:
    """What is kept of operators' keys, oldest first. ValueError where the file is broken."""
    path = folder / "operators.json"
    try:
        return [OperatorKey(**item) for item in json.loads(path.read_text())] if path.exists() else []
    except TypeError as error:
        raise ValueError(f"{path} has not the form that `whippletree keys` writes") from error


def add_signing_key(folder: Path, *, now: float) -> str:
    """Make a new signing key, and the folder where it is missing; the key's id."""
    (folder / "signing").mkdir(parents=True, exist_ok=True, mode=0o700)
    kid = f"{datetime.fromtimestamp(now, UTC):{_TIME}}-{secrets.token_hex(3)}"
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_secret(folder / "signing" / f"{kid}.pem", pem)
    return kid


def add_operator(folder: Path, name: str, *, now: float) -> str:
    """A new operator's key, which is not kept."""
    key, kept = new_key(name, now=int(now))
    _write_operators(folder, [*read_operators(folder), kept])
    return key


def revoke_operator(folder: Path, key_id: str) -> bool:
    """Remove a key; whether it was there."""
    before = read_operators(folder)
    after = [key for key in before if key.key_id != key_id]
    if len(after) < len(before):
        _write_operators(folder, after)
    return len(after) < len(before)


def created(kid: str) -> float:
    """When a signing key was made, seconds since 1970 UTC. ValueError where the id has not our form."""
    return datetime.strptime(kid.partition("-")[0], _TIME).replace(tzinfo=UTC).timestamp()


def public_bytes(key: Ed25519PublicKey) -> str:
    """A public key as base64url without padding."""
    return urlsafe_b64encode(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).decode().rstrip("=")


def write_secret(path: Path, data: bytes) -> None:
    """Write a file that its owner alone may read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(path)


def _write_operators(folder: Path, keys: list[OperatorKey]) -> None:
    write_secret(folder / "operators.json", json.dumps([asdict(key) for key in keys], indent=2).encode() + b"\n")


def _signing_key(path: Path) -> SigningKey:
    data = path.read_bytes()
    try:
        created(path.stem)
        private = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{path} is no signing key of ours") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise ValueError(f"{path} is no signing key of ours")  # noqa: TRY004  # the file is wrong, not a caller
    return SigningKey(kid=path.stem, private=private)


def _signature(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Changes when a file of the folder does."""
    paths = (*sorted((folder / "signing").glob("*.pem")), folder / "operators.json")
    return tuple((str(path), (stat := path.stat()).st_mtime_ns, stat.st_ino) for path in paths if path.exists())
