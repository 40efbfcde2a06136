"""Models and engines: protobuf messages <-> values.

In: requests. Out: checked values (InvalidFieldError where a field is wrong), and messages made of values.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from whippletree.v1 import model_pb2 as pb

from gateway_svc import convert, names
from gateway_svc.types import Engine, EngineKind, LeasedEngine, Micros, Model, ModelName, Role
from whippletree.errors import InvalidFieldError

LEASE = Micros(timedelta(seconds=30) // timedelta(microseconds=1))
SHORTEST, LONGEST = timedelta(seconds=1) // timedelta(microseconds=1), timedelta(hours=1) // timedelta(microseconds=1)

ROLES = {Role.POLICY: pb.MODEL_ROLE_POLICY, Role.AUXILIARY: pb.MODEL_ROLE_AUXILIARY}
KINDS = {EngineKind.SGLANG: pb.ENGINE_KIND_SGLANG, EngineKind.VLLM: pb.ENGINE_KIND_VLLM}

_ROLES = {value: key for key, value in ROLES.items()} | {pb.MODEL_ROLE_UNSPECIFIED: Role.POLICY}
_KINDS = {value: key for key, value in KINDS.items()} | {pb.ENGINE_KIND_UNSPECIFIED: EngineKind.SGLANG}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An engine as it stands now; `leased` None = RegisterModel named it."""

    engine: Engine
    leased: LeasedEngine | None
    state: pb.EngineState.ValueType
    weight_version: str
    in_flight: int
    last_seen: Micros | None


def unseen(engine: Engine, leased: LeasedEngine | None = None) -> Seen:
    """An engine as it is stored: what answers a registration, the first time and every time that it is repeated."""
    state = pb.ENGINE_STATE_UNSPECIFIED
    return Seen(engine=engine, leased=leased, state=state, weight_version="", in_flight=0, last_seen=None)


def model_from_pb(message: pb.Model) -> Model:
    """A model to be registered."""
    if message.role not in _ROLES:
        raise InvalidFieldError("model.role is unknown", field="model.role")
    return Model(
        name=ModelName(names.model(message.name, "model.name")),
        role=_ROLES[message.role],
        engines=tuple(engine_from_pb(engine, "model.engines") for engine in message.engines),
        weight_version=message.weight_version,
        weights_path=message.weights_path,
        tokenizer_path=message.tokenizer_path,
        context_length=message.context_length,
        vocabulary_size=message.vocabulary_size,
    )


def engine_from_pb(message: pb.Engine, field: str) -> Engine:
    """An engine to be registered; its address is checked elsewhere."""
    if message.kind not in _KINDS:
        raise InvalidFieldError(f"{field}.kind is unknown", field=f"{field}.kind")
    if message.max_in_flight < 0:
        raise InvalidFieldError(f"{field}.max_in_flight is negative", field=f"{field}.max_in_flight")
    address = message.address.rstrip("/")
    return Engine(address=address, kind=_KINDS[message.kind], max_in_flight=message.max_in_flight)


def leased_from_pb(request: pb.RegisterEngineRequest) -> LeasedEngine:
    """An engine with a lease to be registered."""
    asked = request.engine
    lease = convert.span(asked.lease, "engine.lease") if asked.HasField("lease") else LEASE
    if not SHORTEST <= lease <= LONGEST:
        raise InvalidFieldError("engine.lease lies outside 1 second to 1 hour", field="engine.lease")
    return LeasedEngine(
        model=names.model(request.model, "model"),
        engine_id=names.engine_id(request.engine_id),
        engine=engine_from_pb(asked, "engine"),
        lease=lease,
    )


def model_to_pb(model: Model, engines: Iterable[Seen]) -> pb.Model:
    """A model with its engines."""
    return pb.Model(
        name=f"models/{model.name}",
        role=ROLES[model.role],
        engines=[engine_to_pb(one) for one in engines],
        weight_version=model.weight_version,
        weights_path=model.weights_path,
        tokenizer_path=model.tokenizer_path,
        context_length=model.context_length,
        vocabulary_size=model.vocabulary_size,
        create_time=convert.timestamp(model.create_time),
    )


def engine_to_pb(seen: Seen) -> pb.Engine:
    """An engine as it stands."""
    leased = seen.leased
    return pb.Engine(
        address=seen.engine.address,
        kind=KINDS[seen.engine.kind],
        weight_version=seen.weight_version,
        name=leased.name if leased else "",
        lease=convert.duration(leased.lease) if leased else None,
        max_in_flight=seen.engine.max_in_flight,
        state=seen.state,
        in_flight_count=seen.in_flight,
        last_seen_time=convert.timestamp(seen.last_seen),
    )
