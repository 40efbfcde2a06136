"""Keys for tests of identity: a folder, operators, and clients that carry a key or a token."""

import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from whippletree.identity.folder import add_operator, add_signing_key
from whippletree.settings import AccessSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """A gateway's folder and one operator's key."""

    folder: Path
    operator: str

    @property
    def access(self) -> AccessSettings:
        """The operator's."""
        return bearer(self.operator)


def make_keys(folder: Path) -> Keys:
    """A folder with a signing key and an operator."""
    add_signing_key(folder, now=time.time())
    return Keys(folder=folder, operator=add_operator(folder, "test", now=time.time()))


def bearer(key: str) -> AccessSettings:
    """Access with a key or a token; none where it is empty."""
    return AccessSettings(api_key=SecretStr(key))
