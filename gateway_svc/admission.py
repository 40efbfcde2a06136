"""Who may call the gateway: operators everything, an attempt's token its own events and nothing else."""

from typing import Any

from gateway_svc import names
from whippletree.identity.claims import Claims, Scope, require
from whippletree.identity.guard import Rules


def allow_event(request: Any, claims: Claims) -> None:
    """Rule of AppendEvent: rewards need their own scope. PermissionDeniedError, InvalidFieldError."""
    scope = Scope.REWARD if request.WhichOneof("payload") == "reward" else Scope.NOTE
    require(claims, scope, rollout=names.rollout(request.parent, "parent"), attempt=request.attempt)


RULES = Rules(
    public=frozenset({"/whippletree.v1.IdentityService/GetKeySet"}),
    scoped={"/whippletree.v1.EventService/AppendEvent": allow_event},
)
