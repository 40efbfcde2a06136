"""Events and model calls <-> messages."""

from google.protobuf.struct_pb2 import Struct
from whippletree.v1 import event_pb2, inference_pb2, model_call_pb2

from gateway_svc import names, retry
from gateway_svc.convert import duration, once, timestamp
from gateway_svc.convert_models import ROLES
from gateway_svc.convert_sampling import asked_from_pb, sampling_to_pb
from gateway_svc.prefix import Hashed
from gateway_svc.recent import Recent
from gateway_svc.types import Ask, Delivery, Event, Finish, Log, Mode, ModelCall, Note, Once, Repeat, Reward, View
from whippletree.errors import InvalidFieldError
from whippletree.tokens import unpack_floats, unpack_ids

MODES = {Mode.TRAIN: model_call_pb2.CALL_MODE_TRAIN, Mode.EVAL: model_call_pb2.CALL_MODE_EVAL}
FINISHES = {
    Finish.STOP: model_call_pb2.FINISH_REASON_STOP,
    Finish.LENGTH: model_call_pb2.FINISH_REASON_LENGTH,
    Finish.ABORT: model_call_pb2.FINISH_REASON_ABORT,
}
DELIVERIES = {
    Delivery.UNKNOWN: model_call_pb2.DELIVERY_UNKNOWN,
    Delivery.DELIVERED: model_call_pb2.DELIVERY_DELIVERED,
    Delivery.LOST: model_call_pb2.DELIVERY_LOST,
}
DIGEST_LIMIT = 64
NAMES_LIMIT, NAME_LIMIT = 50, 100
KEY_LIMIT = 255
_MODES = {value: key for key, value in MODES.items()} | {model_call_pb2.CALL_MODE_UNSPECIFIED: Mode.TRAIN}
_VIEWS = {
    event_pb2.EVENT_VIEW_UNSPECIFIED: View.BASIC,
    event_pb2.EVENT_VIEW_BASIC: View.BASIC,
    event_pb2.EVENT_VIEW_FULL: View.FULL,
    event_pb2.EVENT_VIEW_PACKED: View.PACKED,
}


def view(value: event_pb2.EventView.ValueType) -> View:
    """A known view."""
    if value not in _VIEWS:
        raise InvalidFieldError("view is unknown", field="view")
    return _VIEWS[value]


def payload(request: event_pb2.AppendEventRequest) -> Reward | Note | Log:
    """What is to be appended. Raises InvalidFieldError where there is nothing."""
    match request.WhichOneof("payload"):
        case "reward":
            reward = request.reward
            if not reward.HasField("value"):
                raise InvalidFieldError("reward.value is missing", field="reward.value")
            return Reward(value=reward.value, source=reward.source or "agent", call_id=reward.call_id)
        case "note":
            return Note(type=request.note.type, data=request.note.data.SerializeToString(deterministic=True))
        case "log":
            return Log(stream=request.log.stream, text=request.log.text)
        case _:
            raise InvalidFieldError("one of reward, note, log is needed", field="payload")


def ask(request: inference_pb2.GenerateRequest, recent: Recent) -> Ask:
    """One request for a response."""
    if request.mode not in _MODES:
        raise InvalidFieldError("mode is unknown", field="mode")
    rollout_id = names.rollout(request.rollout, "rollout")
    prompt = request.prompt_token_ids
    hashed = recent.hashed((rollout_id, request.attempt), prompt)
    return Ask(
        rollout_id=rollout_id,
        attempt=request.attempt,
        mode=_MODES[request.mode],
        model=names.model(request.model, "model") if request.model else "",
        prompt=prompt,
        hashed=hashed,
        sampling=asked_from_pb(request.sampling),
        asked_sampling=request.asked_sampling,
        dialect=request.dialect,
        choice_index=request.choice_index,
        once=_once(request, hashed),
        repeat=_repeat(request, _MODES[request.mode]),
        ordinal=request.rollout_ordinal,
        choice_count=request.choice_count or 1,
        ignored_fields=_ignored_fields(request),
    )


def _ignored_fields(request: inference_pb2.GenerateRequest) -> tuple[str, ...]:
    found = tuple(request.ignored_fields)
    if len(found) > NAMES_LIMIT or any(len(name) > NAME_LIMIT for name in found):
        text = f"ignored_fields are more than {NAMES_LIMIT}, or one has more than {NAME_LIMIT} characters"
        raise InvalidFieldError(text, field="ignored_fields")
    return found


def _once(request: inference_pb2.GenerateRequest, prompt: Hashed) -> Once | None:
    """The prompt has been read already: its digest stands for it."""
    brief = inference_pb2.GenerateRequest()
    brief.CopyFrom(request)
    brief.prompt_token_ids = prompt.digest
    return once("Generate", request.request_id, brief)


def _repeat(request: inference_pb2.GenerateRequest, mode: Mode) -> Repeat | None:
    """What the request says of itself; None where it has no digest."""
    if len(request.body_digest) > DIGEST_LIMIT:
        raise InvalidFieldError(f"body_digest is longer than {DIGEST_LIMIT} bytes", field="body_digest")
    if len(request.idempotency_key) > KEY_LIMIT:
        raise InvalidFieldError(f"idempotency_key is longer than {KEY_LIMIT} characters", field="idempotency_key")
    if not request.body_digest:
        return None
    return Repeat(
        turn=retry.turn(request.body_digest, mode, request.model, request.choice_index),
        key=request.idempotency_key,
        is_retry=request.is_retry,
    )


def event_to_pb(event: Event, how: View) -> event_pb2.Event:
    """An event; of a model call what the view shows."""
    made = event_pb2.Event(
        name=f"rollouts/{event.rollout_id}/events/{event.sequence}",
        sequence=event.sequence,
        attempt=event.attempt,
        create_time=timestamp(event.create_time),
        may_ignore=event.may_ignore,
    )
    match event.payload:
        case ModelCall() as call:
            made.model_call.CopyFrom(call_to_pb(call, how))
        case Reward(value=value, source=source, call_id=call_id):
            made.reward.CopyFrom(event_pb2.Reward(value=value, source=source, call_id=call_id))
        case Note(type=label, data=data):
            made.note.CopyFrom(event_pb2.Note(type=label, data=Struct.FromString(data)))
        case Log(stream=stream, text=text):
            made.log.CopyFrom(event_pb2.Log(stream=stream, text=text))
    return made


def call_to_pb(call: ModelCall, how: View) -> model_call_pb2.ModelCall:
    """A model call in a view."""
    head = call.head
    made = model_call_pb2.ModelCall(
        call_id=call.call_id,
        model=f"models/{head.model}",
        dialect=head.dialect,
        mode=MODES[head.mode],
        prompt_token_count=call.prompt_count,
        response_token_count=call.response_count,
        weight_versions=[
            model_call_pb2.WeightVersionSpan(weight_version=span.weight_version, start=span.start, end=span.end)
            for span in head.spans
        ],
        sampling=sampling_to_pb(head.sampling),
        asked_sampling=head.asked_sampling,
        ignored_fields=head.ignored_fields,
        finish_reason=FINISHES[head.finish],
        matched_stop=head.matched_stop,
        delivered=call.delivery == Delivery.DELIVERED,
        delivery=DELIVERIES[call.delivery],
        engine=head.engine,
        start_time=timestamp(head.start_time),
        hold_duration=duration(head.hold),
        engine_duration=duration(head.engine_time),
        parent_call_id=call.parent_call_id,
        shared_token_count=call.shared,
        role=ROLES[head.role],
    )
    if how == View.PACKED:
        made.packed.prompt_suffix = call.suffix
        made.packed.response = call.response
        made.packed.logprobs = call.logprobs
    elif how == View.FULL:
        made.prompt_token_ids.extend(unpack_ids(call.prompt).tolist())
        made.response_token_ids.extend(unpack_ids(call.response).tolist())
        made.response_logprobs.extend(unpack_floats(call.logprobs).tolist())
    return made
