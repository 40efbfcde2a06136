"""IdentityService."""

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from whippletree.v1 import identity_pb2 as pb
from whippletree.v1.identity_pb2_grpc import IdentityServiceServicer

from gateway_svc import convert, names, rollouts
from gateway_svc.issuer import Issuer, scopes
from gateway_svc.store import Store
from gateway_svc.types import Micros
from whippletree.errors import WrongStateError
from whippletree.identity.folder import Keys

Context = grpc.aio.ServicerContext[Any, Any]
SECOND = 1_000_000


class IdentityServicer(IdentityServiceServicer):
    """The key set and tokens; `issuer` and `keys` are None where the gateway runs without identity."""

    def __init__(
        self, store: Store, issuer: Issuer | None, keys: Callable[[], Keys] | None, clock: Callable[[], Micros]
    ) -> None:
        self._store, self._issuer, self._keys, self._clock = store, issuer, keys, clock

    async def GetKeySet(self, request: pb.GetKeySetRequest, context: Context) -> pb.GetKeySetResponse:
        if self._keys is None:
            return pb.GetKeySetResponse()
        keys = self._keys()
        newest_first = (key.kid for key in reversed(keys.signing))
        return pb.GetKeySetResponse(keys=[convert.key_to_pb(kid, keys.public[kid]) for kid in newest_first])

    async def IssueToken(self, request: pb.IssueTokenRequest, context: Context) -> pb.IssueTokenResponse:
        rollout_id, number = names.attempt(request.name)
        wanted = convert.scopes(request.scopes)
        lifetime = convert.span(request.lifetime, "lifetime") // SECOND
        if self._issuer is None:
            raise WrongStateError("the gateway runs without identity")
        rollout = await self._store.read(lambda connection: rollouts.get(connection, rollout_id))
        await self._store.read(lambda connection: rollouts.get_attempt(connection, rollout_id, number))
        terms, issued = convert.terms(rollout.spec.runner), self._clock() // SECOND
        expires = issued + (lifetime or self._issuer.length(terms))
        token = self._issuer.issue(rollout, number, wanted or scopes(terms), issued=issued, expires=expires)
        return pb.IssueTokenResponse(token=token, expire_time=Timestamp(seconds=expires))
