"""The client of the gateway: everything that the bridge asks it.

Every rpc is idempotent, has a deadline, and is repeated while the gateway is unavailable. Raises WhippletreeError.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from whippletree.v1 import (
    identity_pb2,
    identity_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    rollout_pb2,
    rollout_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
)

from openai_bridge import convert
from openai_bridge.types import Caller, Generation, Model, Repeat, Sampling
from whippletree.channel import call
from whippletree.tokens import TokenIds, pack_ids
from whippletree.tracing import outgoing

QUERY_DEADLINE = 10.0
"""Seconds for one try of anything but a generation."""
PAGE = 1_000
ANY_ROLLOUT = "rollouts/-"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One generation. The same `request_id` never samples twice."""

    caller: Caller
    model: str
    prompt: TokenIds
    """[P]."""
    sampling: Sampling
    dialect: str
    request_id: str
    choice: int
    choices: int
    """How many requests of the harness's one, this among them, ask for a response to the prompt."""
    digest: bytes
    """Of the harness's body; see `ChatRequest.digest`."""
    ignored: tuple[str, ...] = ()
    """See `ChatRequest.ignored`."""
    repeat: Repeat


class Gateway:
    """Typed calls over one channel."""

    def __init__(self, channel: grpc.aio.Channel, *, patience: float, generation_deadline: float) -> None:
        """`patience`, `generation_deadline`: seconds."""
        self._inference: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(channel)
        self._models: model_pb2_grpc.ModelServiceAsyncStub = model_pb2_grpc.ModelServiceStub(channel)
        self._rollouts: rollout_pb2_grpc.RolloutServiceAsyncStub = rollout_pb2_grpc.RolloutServiceStub(channel)
        self._runs: run_pb2_grpc.RunServiceAsyncStub = run_pb2_grpc.RunServiceStub(channel)
        self._identity: identity_pb2_grpc.IdentityServiceAsyncStub = identity_pb2_grpc.IdentityServiceStub(channel)
        self._patience = patience
        self._generation_deadline = generation_deadline

    async def generate(self, ask: Ask) -> Generation:
        """One response, sampled or (for a request id that is known) recorded. Cancelling it aborts the generation."""
        request = inference_pb2.GenerateRequest(
            rollout=f"rollouts/{ask.caller.rollout}",
            rollout_ordinal=ask.caller.ordinal,
            attempt=ask.caller.attempt,
            mode=convert.MODES[ask.caller.mode],
            model=f"models/{ask.model}",
            prompt_token_ids=pack_ids(ask.prompt),
            sampling=convert.sampling(ask.sampling),
            dialect=ask.dialect,
            request_id=ask.request_id,
            choice_index=ask.choice,
            choice_count=ask.choices,
            asked_sampling=ask.sampling.other,
            body_digest=ask.digest,
            idempotency_key=ask.repeat.key,
            is_retry=ask.repeat.is_retry,
            ignored_fields=ask.ignored,
        )
        metadata = _metadata(ask.caller.rollout)
        response = await self._patiently(
            lambda: self._inference.Generate(request, metadata=metadata, timeout=self._generation_deadline)
        )
        return convert.generation(response)

    async def mark_delivered(self, call_ids: Sequence[str], *, patience: float) -> None:
        """Say that at most 100 replies, to whatever rollouts, were written out in full."""
        request = inference_pb2.MarkDeliveredRequest(rollout=ANY_ROLLOUT, call_ids=call_ids)
        await call(lambda: self._inference.MarkDelivered(request, timeout=QUERY_DEADLINE), patience=patience)

    async def mark_undelivered(self, rollout: str, request_ids: Sequence[str], *, patience: float) -> None:
        """Say that the harness of at most 100 requests went away before their replies were written out in full."""
        request = inference_pb2.MarkUndeliveredRequest(rollout=f"rollouts/{rollout}", request_ids=request_ids)
        metadata = _metadata(rollout)
        await call(
            lambda: self._inference.MarkUndelivered(request, metadata=metadata, timeout=QUERY_DEADLINE),
            patience=patience,
        )

    async def run_of(self, rollout: str) -> str:
        """`runs/{run}` of a rollout. NotFoundError where there is no such rollout."""
        request, metadata = rollout_pb2.GetRolloutRequest(name=f"rollouts/{rollout}"), _metadata(rollout)
        response = await self._patiently(
            lambda: self._rollouts.GetRollout(request, metadata=metadata, timeout=QUERY_DEADLINE)
        )
        return response.rollout.run

    async def policy_of(self, run: str) -> str:
        """Bare id of the policy of `runs/{run}`."""
        request = run_pb2.GetRunRequest(name=run)
        response = await self._patiently(lambda: self._runs.GetRun(request, timeout=QUERY_DEADLINE))
        return response.run.policy.removeprefix("models/")

    async def public_keys(self) -> Mapping[str, Ed25519PublicKey]:
        """The keys that verify attempts' tokens, by id."""
        request = identity_pb2.GetKeySetRequest()
        response = await call(lambda: self._identity.GetKeySet(request, timeout=QUERY_DEADLINE), patience=0.0)
        return convert.public_keys(response)

    async def models(self) -> tuple[list[Model], list[Model]]:
        """(policies, auxiliaries) that are registered, each by name."""
        policies: list[Model] = []
        auxiliaries: list[Model] = []
        token = ""
        while True:
            page = await self._page(token)
            for message in page.models:
                helper = message.role == model_pb2.MODEL_ROLE_AUXILIARY
                (auxiliaries if helper else policies).append(convert.model(message))
            token = page.next_page_token
            if not token:
                return policies, auxiliaries

    async def _page(self, token: str) -> model_pb2.ListModelsResponse:
        request = model_pb2.ListModelsRequest(page_size=PAGE, page_token=token)
        return await self._patiently(lambda: self._models.ListModels(request, timeout=QUERY_DEADLINE))

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        return await call(attempt, patience=self._patience)


def _metadata(rollout: str) -> tuple[tuple[str, str], ...]:
    return (("whippletree-rollout", rollout), *outgoing())
