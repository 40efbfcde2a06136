"""Protobuf <-> the bridge's types."""

import re
from base64 import urlsafe_b64decode
from collections.abc import Iterable
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from google.api import httpbody_pb2
from whippletree.v1 import identity_pb2, inference_pb2, model_call_pb2, model_pb2

from openai_bridge.encoding import decoded
from openai_bridge.settings import LimitSettings
from openai_bridge.types import Caller, Finish, Generation, Mode, Model, Part, Repeat, Sampling
from whippletree.errors import InvalidFieldError
from whippletree.identity import guard
from whippletree.tokens import unpack_floats, unpack_ids


class PathRequest(Protocol):
    """Any request of a harness: its path says whose it is."""

    rollout: str
    attempt: str
    mode: str


class BodyRequest(PathRequest, Protocol):
    """One that carries a body."""

    @property
    def body(self) -> httpbody_pb2.HttpBody:
        """As the harness sent it."""


_ROLLOUT = re.compile(r"[a-z0-9-]{1,48}")
_ATTEMPT = re.compile(r"0{0,9}[1-9][0-9]{0,8}")

FINISH = {
    model_call_pb2.FINISH_REASON_STOP: Finish.STOP,
    model_call_pb2.FINISH_REASON_LENGTH: Finish.LENGTH,
    model_call_pb2.FINISH_REASON_ABORT: Finish.ABORT,
}
"""An unknown reason reads as ABORT: never as success."""
KEY_LIMIT = 255
"""Characters of an idempotency key."""
KEEP_ALIVE = "whippletree-keep-alive"
"""The header by which a harness turns keep-alives off."""
MODES = {Mode.TRAIN: model_call_pb2.CALL_MODE_TRAIN, Mode.EVAL: model_call_pb2.CALL_MODE_EVAL}


def caller(request: PathRequest) -> Caller:
    """Who calls, from path and token. InvalidFieldError where the path is not of our form or its mode is unknown."""
    if not _ROLLOUT.fullmatch(request.rollout):  # it becomes gRPC metadata, which takes less than a path does
        raise InvalidFieldError(f"Invalid rollout {request.rollout[:100]!r} in the path.", field="rollout")
    if not _ATTEMPT.fullmatch(request.attempt):
        raise InvalidFieldError(f"Invalid attempt '{request.attempt}' in the path: a number from 1.", field="attempt")
    if request.mode not in set(Mode):
        raise InvalidFieldError(f"Invalid mode '{request.mode}' in the path: train or eval.", field="mode")
    return Caller(
        rollout=request.rollout, attempt=int(request.attempt), mode=Mode(request.mode), ordinal=guard.ordinal()
    )


def body(request: BodyRequest, headers: Iterable[tuple[str, str | bytes]], limits: LimitSettings) -> bytes:
    """The harness's body, decompressed."""
    lines = [str(value) for name, value in headers if name == "content-encoding"]  # one list, also in several lines
    return decoded(request.body.data, ",".join(lines), limits.body)


def repeat(headers: Iterable[tuple[str, str | bytes]]) -> Repeat:
    """What the headers say of a repeat. InvalidFieldError where the key is too long to be kept."""
    found = dict(headers)
    key, count = found.get("idempotency-key", ""), found.get("x-stainless-retry-count", "")
    if len(key) > KEY_LIMIT:
        raise InvalidFieldError(f"'Idempotency-Key' is longer than {KEY_LIMIT} characters.", field="Idempotency-Key")
    return Repeat(key=str(key), is_retry=count.isdecimal() and int(count[:9]) > 0 if isinstance(count, str) else False)


def keeps_alive(headers: Iterable[tuple[str, str | bytes]]) -> bool:
    """Whether a stream that waits may have keep-alives. InvalidFieldError where the header says anything but `off`."""
    asked = str(dict(headers).get(KEEP_ALIVE, "")).strip().lower()
    if asked not in ("", "off"):
        raise InvalidFieldError(f"Invalid '{KEEP_ALIVE}' header: it can only be 'off'.", field=KEEP_ALIVE)
    return not asked


def http_body(part: Part) -> httpbody_pb2.HttpBody:
    """Bytes of an answer."""
    return httpbody_pb2.HttpBody(content_type=part.content_type, data=part.data)


def sampling(asked: Sampling) -> model_call_pb2.SamplingParams:
    """What the harness asked for; unset stays unset."""
    return model_call_pb2.SamplingParams(
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        max_tokens=asked.max_tokens,
        stop=asked.stop,
        seed=asked.seed,
    )


def generation(response: inference_pb2.GenerateResponse) -> Generation:
    """One recorded response. ValueError where ids and log-probabilities differ in number."""
    ids, logprobs = unpack_ids(response.response_token_ids), unpack_floats(response.response_logprobs)
    if len(ids) != len(logprobs):
        raise ValueError(f"{len(ids)} ids with {len(logprobs)} log-probabilities")
    spans = response.call.weight_versions
    return Generation(
        call_id=response.call.call_id,
        prompt_count=response.call.prompt_token_count,
        ids=ids,
        logprobs=logprobs,
        finish=FINISH.get(response.call.finish_reason, Finish.ABORT),
        weight_version=spans[-1].weight_version if spans else "",
    )


def model(message: model_pb2.Model) -> Model:
    """A registered model."""
    return Model(
        name=message.name.removeprefix("models/"),
        tokenizer_path=message.tokenizer_path,
        context_length=message.context_length,
        created=message.create_time.seconds,
    )


def public_keys(response: identity_pb2.GetKeySetResponse) -> dict[str, Ed25519PublicKey]:
    """Keys by id; those of a kind that this bridge does not know are left out."""
    return {
        key.kid: Ed25519PublicKey.from_public_bytes(urlsafe_b64decode(key.x + "="))
        for key in response.keys
        if (key.kty, key.crv) == ("OKP", "Ed25519")
    }
