"""Attempt tokens: JSON Web Tokens signed with Ed25519 (EdDSA), which Envoy's jwt_authn verifies too.

In: claims and a signing key. Out: a token, or its claims again. A token once verified is remembered, so that a call
costs a look into a dictionary; it is verified anew when the key behind its `kid` is another one or gone.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from whippletree.errors import UnauthenticatedError
from whippletree.identity.claims import Claims, Scope

ALGORITHM = "EdDSA"
ISSUER = "whippletree"
LONGEST = 4096
"""Characters of a token."""
REMEMBERED = 10_000
"""Verified tokens that are kept."""


class PublicKeys(Protocol):
    """The keys that verify, by key id."""

    def find(self, kid: str) -> Ed25519PublicKey | None:
        """The key as it is known now."""

    async def refresh(self) -> None:
        """Look again, because a key id was not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A private key and its id."""

    kid: str
    private: Ed25519PrivateKey


def sign(claims: Claims, key: SigningKey) -> str:
    """The token of these claims; equal claims and key give an equal token."""
    payload = {
        "iss": ISSUER,
        "sub": f"rollouts/{claims.rollout}/attempts/{claims.attempt}",
        "rollout": claims.rollout,
        "ordinal": claims.ordinal,
        "attempt": claims.attempt,
        "mode": claims.mode,
        "run": claims.run,
        "scopes": sorted(claims.scopes),
        "iat": claims.issued,
        "exp": claims.expires,
    }
    return jwt.encode(payload, key.private, algorithm=ALGORITHM, headers={"kid": key.kid})


class TokenVerifier:
    """Tokens -> claims."""

    def __init__(self, keys: PublicKeys, clock: Callable[[], float]) -> None:
        """`clock`: seconds since 1970 UTC."""
        self._keys, self._clock = keys, clock
        self._known: OrderedDict[str, tuple[str, Ed25519PublicKey, Claims]] = OrderedDict()

    async def claims(self, token: str) -> Claims:
        """What a token says. UnauthenticatedError where it is not signed by a key of ours, or has expired."""
        claims = self._remembered(token) or await self._verified(token)
        if claims.expires <= self._clock():
            raise UnauthenticatedError("the token has expired")
        return claims

    def _remembered(self, token: str) -> Claims | None:
        found = self._known.get(token)
        if found is None or self._keys.find(found[0]) != found[1]:
            return None
        self._known.move_to_end(token)
        return found[2]

    async def _verified(self, token: str) -> Claims:
        kid = _key_id(token)
        key = self._keys.find(kid)
        if key is None:
            await self._keys.refresh()
            key = self._keys.find(kid)
        if key is None:
            raise UnauthenticatedError("the token is signed by none of our keys")
        claims = _claims(token, key)
        self._known[token] = (kid, key, claims)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return claims


def _key_id(token: str) -> str:
    if len(token) > LONGEST:
        raise UnauthenticatedError("the API key is no token of ours")
    try:
        kid = jwt.get_unverified_header(token).get("kid")
    except jwt.InvalidTokenError:
        kid = None
    if not isinstance(kid, str):
        raise UnauthenticatedError("the API key is no token of ours")
    return kid


def _claims(token: str, key: Ed25519PublicKey) -> Claims:
    """The claims of a token that this key has signed; whether it has expired is asked at every use."""
    options: Any = {"require": ["iss", "iat", "exp"], "verify_exp": False, "verify_iat": False, "verify_nbf": False}
    try:
        said = jwt.decode(token, key, algorithms=[ALGORITHM], issuer=ISSUER, options=options)
        return Claims(
            rollout=str(said["rollout"]),
            ordinal=int(said.get("ordinal", 0)),  # tokens that an earlier release signed have none
            attempt=int(said["attempt"]),
            mode=str(said["mode"]),
            run=str(said["run"]),
            scopes=frozenset(Scope(scope) for scope in said["scopes"] if scope in set(Scope)),
            issued=int(said["iat"]),
            expires=int(said["exp"]),
        )
    except (jwt.InvalidTokenError, KeyError, TypeError, ValueError):
        raise UnauthenticatedError("the token is not signed by us") from None
