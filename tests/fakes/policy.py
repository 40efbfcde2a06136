"""A scripted gateway for the bridge's tests: a real grpc.aio server, real messages, replies from the test.

In: a model's folder and a script (`reply`), asked once per request id. Out: `asked`, `delivered`, `undelivered`,
`cancelled`, in order. Serves only what the bridge asks; the real gateway is used wherever a test does not need a
scripted fault.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from whippletree.v1 import (
    identity_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_call_pb2,
    model_pb2,
    model_pb2_grpc,
    rollout_pb2,
    rollout_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
)

from whippletree.errors import NotFoundError
from whippletree.serve import Service, listening
from whippletree.tokens import pack_floats, pack_ids

Request = inference_pb2.GenerateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What the engine would have sampled."""

    ids: list[int]
    finish: int = model_call_pb2.FINISH_REASON_STOP
    logprobs: list[float] | None = None


@dataclass(slots=True, kw_only=True)
class FakePolicy:
    """The state of one scripted gateway. `reply` may raise a WhippletreeError or wait."""

    tokenizer_path: Path
    reply: Callable[[Request], Awaitable[Sampled]]
    asked: list[Request] = field(default_factory=list)
    delivered: list[str] = field(default_factory=list)
    undelivered: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _answers: dict[str, Sampled] = field(default_factory=dict)

    async def until(self, true: Callable[[], bool]) -> None:
        """Return once `true()` holds. TimeoutError after a minute: only a fault ever takes that long."""
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(true)

    async def note(self, into: list[Any], *items: Any) -> None:
        """Append and wake."""
        async with self.changed:
            into.extend(items)
            self.changed.notify_all()

    async def sample(self, request: Request) -> tuple[str, Sampled]:
        """(call id, response); the same for a repeated request id."""
        await self.note(self.asked, request)
        try:
            if request.request_id not in self._answers:
                self._answers[request.request_id] = await self.reply(request)
        except asyncio.CancelledError:
            self.cancelled.append(request.request_id)
            raise
        return request.request_id.replace("-", ""), self._answers[request.request_id]


class _Inference(inference_pb2_grpc.InferenceServiceServicer):
    def __init__(self, policy: FakePolicy) -> None:
        self._policy = policy

    async def Generate(self, request: Any, context: Any) -> Any:
        try:
            call_id, sampled = await self._policy.sample(request)
        finally:
            async with self._policy.changed:
                self._policy.changed.notify_all()
        logprobs = sampled.logprobs if sampled.logprobs is not None else [-0.5] * len(sampled.ids)
        call = model_call_pb2.ModelCall(
            call_id=call_id,
            prompt_token_count=len(request.prompt_token_ids) // 4,
            response_token_count=len(sampled.ids),
            finish_reason=sampled.finish,  # type: ignore[arg-type]
            weight_versions=[model_call_pb2.WeightVersionSpan(weight_version="v1", start=0, end=len(sampled.ids))],
        )
        return inference_pb2.GenerateResponse(
            call=call, response_token_ids=pack_ids(sampled.ids), response_logprobs=pack_floats(logprobs)
        )

    async def MarkDelivered(self, request: Any, context: Any) -> Any:
        await self._policy.note(self._policy.delivered, *request.call_ids)
        return inference_pb2.MarkDeliveredResponse()

    async def MarkUndelivered(self, request: Any, context: Any) -> Any:
        await self._policy.note(self._policy.undelivered, *request.request_ids)
        return inference_pb2.MarkUndeliveredResponse()


class _Rollouts(rollout_pb2_grpc.RolloutServiceServicer):
    async def GetRollout(self, request: Any, context: Any) -> Any:
        if request.name != "rollouts/r1":
            raise NotFoundError(f"There is no rollout '{request.name}'.", name=request.name)
        return rollout_pb2.GetRolloutResponse(rollout=rollout_pb2.Rollout(name=request.name, run="runs/run1"))


class _Runs(run_pb2_grpc.RunServiceServicer):
    async def GetRun(self, request: Any, context: Any) -> Any:
        return run_pb2.GetRunResponse(run=run_pb2.Run(name=request.name, policy="models/tiny"))


class _Identity(identity_pb2_grpc.IdentityServiceServicer):
    """Nobody asks for keys where identity is off."""


class _Models(model_pb2_grpc.ModelServiceServicer):
    def __init__(self, policy: FakePolicy) -> None:
        self._policy = policy

    async def ListModels(self, request: Any, context: Any) -> Any:
        roles = {"other": model_pb2.MODEL_ROLE_POLICY, "tiny": model_pb2.MODEL_ROLE_POLICY}
        roles["judge"] = model_pb2.MODEL_ROLE_AUXILIARY
        path = str(self._policy.tokenizer_path)
        return model_pb2.ListModelsResponse(
            models=[
                model_pb2.Model(name=f"models/{name}", role=roles[name], tokenizer_path=path, context_length=32_768)
                for name in roles
            ]
        )


def services_of(policy: FakePolicy) -> list[Service]:
    """What a server, or a local channel, is made with."""
    rollouts, runs, models = _Rollouts(), _Runs(), _Models(policy)  # type: ignore[abstract]  # only what is asked
    identity = _Identity()  # type: ignore[abstract]
    adders: list[tuple[str, Callable[[grpc.aio.Server], None]]] = [
        (
            "InferenceService",
            lambda server: inference_pb2_grpc.add_InferenceServiceServicer_to_server(_Inference(policy), server),
        ),
        ("RolloutService", lambda server: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(rollouts, server)),
        ("RunService", lambda server: run_pb2_grpc.add_RunServiceServicer_to_server(runs, server)),
        ("IdentityService", lambda server: identity_pb2_grpc.add_IdentityServiceServicer_to_server(identity, server)),
        ("ModelService", lambda server: model_pb2_grpc.add_ModelServiceServicer_to_server(models, server)),
    ]
    return [Service(full_name=f"whippletree.v1.{name}", register=register) for name, register in adders]


@contextlib.asynccontextmanager
async def serving(policy: FakePolicy, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """Serve it; yields `host:port`."""
    async with listening(services_of(policy), address, grace=0) as port:
        yield f"127.0.0.1:{port}"
