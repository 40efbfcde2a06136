"""Who may call the bridge: the bearer of an attempt's token, for that attempt."""

from typing import Any

from whippletree.identity.claims import Claims, Scope, require
from whippletree.identity.guard import Rules


def allow(request: Any, claims: Claims) -> None:
    """Rule of every rpc: path and token agree; what the path leaves out is as the token says. PermissionDeniedError."""
    if not request.rollout:  # a dialect's own path
        request.rollout, request.attempt, request.mode = claims.rollout, str(claims.attempt), claims.mode
    attempt = int(request.attempt) if request.attempt.isdecimal() and len(request.attempt) < 10 else 0
    require(claims, Scope.INFER, rollout=request.rollout, attempt=attempt, mode=request.mode)


RULES = Rules(
    scoped={
        "/whippletree.v1.OpenAIBridgeService/": allow,
        "/whippletree.v1.AnthropicBridgeService/": allow,
    }
)
