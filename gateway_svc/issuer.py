"""Attempt tokens: what an attempt's agent may do, and for how long. Pure but for the signing key.

In: a rollout and the number of an attempt. Out: a signed token. Nothing is stored: the same attempt gets the same token
as long as the same key signs.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gateway_svc.types import Attempt, Micros, Rollout
from whippletree.identity.claims import Claims, Scope
from whippletree.identity.tokens import SigningKey, sign

SECOND = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a rollout's runner says of its attempts."""

    timeout: Micros
    """Longest time of one; 0 = as the controller has it."""
    agent_rewards: bool
    """Whether the agent may post rewards."""


class Issuer:
    """Signs tokens. `lifetime`: of a token whose rollout sets no time, `slack`: added to one that does; seconds."""

    def __init__(self, signer: Callable[[], SigningKey], *, lifetime: float, slack: float) -> None:
        self._signer, self._lifetime, self._slack = signer, lifetime, slack

    def agents(self, rollout: Rollout, attempt: Attempt, terms: Terms) -> str:
        """The token of an attempt's agent."""
        issued = attempt.start_time // SECOND
        return self.issue(rollout, attempt.number, scopes(terms), issued=issued, expires=issued + self.length(terms))

    def length(self, terms: Terms) -> int:
        """Seconds for which an agent's token is valid, beyond the end of any attempt that ends in time."""
        return int(terms.timeout / SECOND + self._slack if terms.timeout else self._lifetime)

    def issue(self, rollout: Rollout, attempt: int, scopes: frozenset[Scope], *, issued: int, expires: int) -> str:
        """A token with these scopes; times are seconds since 1970 UTC."""
        spec = rollout.spec
        claims = Claims(
            rollout=spec.rollout_id,
            ordinal=rollout.ordinal,
            attempt=attempt,
            mode=spec.split,
            run=spec.run_id,
            scopes=scopes,
            issued=issued,
            expires=expires,
        )
        return sign(claims, self._signer())


def scopes(terms: Terms) -> frozenset[Scope]:
    """What an attempt's agent may do. A reward that an evaluator gives is not the agent's to post."""
    return frozenset(Scope) if terms.agent_rewards else frozenset({Scope.INFER, Scope.NOTE})
