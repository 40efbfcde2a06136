import base64
import json
from collections.abc import Callable
from dataclasses import replace

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from whippletree.errors import UnauthenticatedError
from whippletree.identity.claims import Claims, Scope
from whippletree.identity.tokens import REMEMBERED, SigningKey, TokenVerifier, sign

KEY = SigningKey(kid="k1", private=Ed25519PrivateKey.generate())
CLAIMS = Claims(
    rollout="a",
    ordinal=7,
    attempt=1,
    mode="train",
    run="r",
    scopes=frozenset({Scope.INFER}),
    issued=1_000,
    expires=2_000,
)


class Known:
    """Public keys that a test changes, and how often they were looked at again."""

    def __init__(self, *keys: SigningKey) -> None:
        self.keys = {key.kid: key.private.public_key() for key in keys}
        self.later: dict[str, Ed25519PublicKey] = {}
        self.refreshed = 0

    def find(self, kid: str) -> Ed25519PublicKey | None:
        return self.keys.get(kid)

    async def refresh(self) -> None:
        self.refreshed += 1
        self.keys.update(self.later)


def at(now: float) -> Callable[[], float]:
    return lambda: now


async def test_a_signed_token_gives_its_claims_again() -> None:
    verifier = TokenVerifier(Known(KEY), at(1_500))
    token = sign(CLAIMS, KEY)
    assert await verifier.claims(token) == CLAIMS
    assert await verifier.claims(token) == CLAIMS


async def test_equal_claims_give_an_equal_token() -> None:
    assert sign(CLAIMS, KEY) == sign(CLAIMS, KEY)


async def test_an_expired_token_is_refused_also_when_it_was_verified_before() -> None:
    now = 1_999.0
    verifier = TokenVerifier(Known(KEY), lambda: now)
    token = sign(CLAIMS, KEY)
    await verifier.claims(token)
    now = 2_000.0
    with pytest.raises(UnauthenticatedError, match="expired"):
        await verifier.claims(token)


async def test_a_key_that_came_later_is_looked_for() -> None:
    known = Known()
    known.later = {KEY.kid: KEY.private.public_key()}
    assert await TokenVerifier(known, at(1_500)).claims(sign(CLAIMS, KEY)) == CLAIMS
    assert known.refreshed == 1


async def test_a_token_is_refused_once_its_key_is_gone_or_another() -> None:
    known, token = Known(KEY), sign(CLAIMS, KEY)
    verifier = TokenVerifier(known, at(1_500))
    await verifier.claims(token)
    known.keys = {KEY.kid: Ed25519PrivateKey.generate().public_key()}
    with pytest.raises(UnauthenticatedError):
        await verifier.claims(token)
    known.keys = {}
    with pytest.raises(UnauthenticatedError):
        await verifier.claims(token)


def forged() -> dict[str, str]:
    """Tokens that nobody may take."""
    good = sign(CLAIMS, KEY)
    head, body, signature = good.split(".")
    payload = json.loads(base64.urlsafe_b64decode(body + "=="))
    other = base64.urlsafe_b64encode(json.dumps(payload | {"rollout": "b"}).encode()).decode().rstrip("=")
    public = KEY.private.public_key().public_bytes_raw()
    stranger = SigningKey(kid=KEY.kid, private=Ed25519PrivateKey.generate())
    return {
        "nothing": "",
        "no token": "sk-1234",
        "other claims": f"{head}.{other}.{signature}",
        "no signature": f"{head}.{body}.",
        "signed by nobody": jwt.encode(payload, "", algorithm="none", headers={"kid": KEY.kid}),
        "signed with the public key": jwt.encode(payload, public, algorithm="HS256", headers={"kid": KEY.kid}),
        "signed by a stranger": sign(CLAIMS, stranger),
        "an unknown key": sign(CLAIMS, replace(KEY, kid="k2")),
        "no key id": jwt.encode(payload, KEY.private, algorithm="EdDSA"),
        "another issuer": jwt.encode(payload | {"iss": "x"}, KEY.private, algorithm="EdDSA", headers={"kid": KEY.kid}),
        "no end": jwt.encode(
            {key: value for key, value in payload.items() if key != "exp"},
            KEY.private,
            algorithm="EdDSA",
            headers={"kid": KEY.kid},
        ),
        "too long": good + "x" * 5_000,
    }


@pytest.mark.parametrize("name", forged())
async def test_forged_tokens_are_refused_and_not_repeated(name: str) -> None:
    token = forged()[name]
    with pytest.raises(UnauthenticatedError) as caught:
        await TokenVerifier(Known(KEY), at(1_500)).claims(token)
    assert not token or token not in str(caught.value)


async def test_only_so_many_tokens_are_remembered() -> None:
    verifier = TokenVerifier(Known(KEY), at(1_500))
    verifier._known.update((str(number), ("k", KEY.private.public_key(), CLAIMS)) for number in range(REMEMBERED))
    await verifier.claims(sign(CLAIMS, KEY))
    assert len(verifier._known) == REMEMBERED
