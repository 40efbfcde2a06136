"""The errors that every service raises and every client gets back: one class per reason of `error_reason.proto`.

In: facts, raised where they are known. Out: google.rpc.Status with one ErrorInfo (`to_status`), or the same error again
on the caller's side (`from_rpc_error`). One layer of `serve.py` does the first, clients do the second.
"""

from collections.abc import Mapping
from typing import ClassVar

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

DOMAIN = "whippletree"
MESSAGE_LIMIT = 1000
"""Bytes of a message: it travels in HTTP headers, percent-encoded, and peers refuse headers above 8 KiB."""
FACT_LIMIT = 300
"""Bytes of one fact of the metadata."""


class WhippletreeError(Exception):
    """Base: `reason` is the enum's name without its prefix, `code` the gRPC code, `metadata` facts for machines."""

    reason: ClassVar[str] = "INTERNAL"
    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL

    def __init__(self, message: str, *, retry_after: float | None = None, **metadata: object) -> None:
        self.message = clipped(message, MESSAGE_LIMIT)
        super().__init__(self.message)
        self.retry_after = retry_after
        self.metadata: Mapping[str, str] = {key: clipped(str(value), FACT_LIMIT) for key, value in metadata.items()}

    def to_status(self) -> status_pb2.Status:
        """google.rpc.Status with exactly one ErrorInfo, and RetryInfo where `retry_after` (seconds) is known."""
        info = error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=dict(self.metadata))
        status = status_pb2.Status(code=code_pb2.Code.Value(self.code.name), message=self.message)
        status.details.add().Pack(info)
        if self.retry_after is not None:
            delay = Duration()
            delay.FromMilliseconds(int(self.retry_after * 1000))
            status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        return status


def clipped(text: str, limit: int) -> str:
    """`text`, or its beginning and an ellipsis: at most `limit` bytes of UTF-8."""
    data = text.encode(errors="replace")
    return text if len(data) <= limit else data[: limit - 3].decode(errors="ignore") + "…"


class InvalidFieldError(WhippletreeError):
    """A field is missing or out of range; say which by `field=`."""

    reason = "INVALID_FIELD"
    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFoundError(WhippletreeError):
    """No such resource; `name=`."""

    reason = "NOT_FOUND"
    code = grpc.StatusCode.NOT_FOUND


class AlreadyExistsError(WhippletreeError):
    """A resource of this id exists with other content; `name=`."""

    reason = "ALREADY_EXISTS"
    code = grpc.StatusCode.ALREADY_EXISTS


class RequestIdReusedError(WhippletreeError):
    """The request id was used for another body."""

    reason = "REQUEST_ID_REUSED"
    code = grpc.StatusCode.ALREADY_EXISTS


class WrongStateError(WhippletreeError):
    """The state machine has no such transition; metadata `from`, `to`."""

    reason = "WRONG_STATE"
    code = grpc.StatusCode.FAILED_PRECONDITION


class StaleAttemptError(WhippletreeError):
    """The attempt is not the current one; `attempt=`, `current=`."""

    reason = "STALE_ATTEMPT"
    code = grpc.StatusCode.FAILED_PRECONDITION


class RolloutEndedError(WhippletreeError):
    """The rollout takes no more events or calls; `name=`."""

    reason = "ROLLOUT_ENDED"
    code = grpc.StatusCode.FAILED_PRECONDITION


class RewardNotFiniteError(WhippletreeError):
    """A reward is NaN or infinite."""

    reason = "REWARD_NOT_FINITE"
    code = grpc.StatusCode.INVALID_ARGUMENT


class ContextLengthExceededError(WhippletreeError):
    """The prompt leaves no room; `prompt_tokens=`, `context_length=`."""

    reason = "CONTEXT_LENGTH_EXCEEDED"
    code = grpc.StatusCode.INVALID_ARGUMENT


class TokenOutOfVocabularyError(WhippletreeError):
    """A token id lies outside the vocabulary; `token=`, `vocabulary_size=`."""

    reason = "TOKEN_OUT_OF_VOCABULARY"
    code = grpc.StatusCode.INVALID_ARGUMENT


class HeldTooLongError(WhippletreeError):
    """A generation was held longer than the run's max_hold."""

    reason = "HELD_TOO_LONG"
    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class EngineUnavailableError(WhippletreeError):
    """The engine cannot be reached or failed; `engine=`."""

    reason = "ENGINE_UNAVAILABLE"
    code = grpc.StatusCode.UNAVAILABLE


class ShuttingDownError(WhippletreeError):
    """The service starts or stops."""

    reason = "SHUTTING_DOWN"
    code = grpc.StatusCode.UNAVAILABLE


class OverloadedError(WhippletreeError):
    """A bounded queue is full."""

    reason = "OVERLOADED"
    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class StoreFullError(WhippletreeError):
    """The store has no room: nothing was written, reads go on, and it recovers by itself."""

    reason = "STORE_FULL"
    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class SupersededError(WhippletreeError):
    """Another command overtook this one before it was carried out; `phase=`."""

    reason = "SUPERSEDED"
    code = grpc.StatusCode.ABORTED


class UnauthenticatedError(WhippletreeError):
    """There is no key or token, or it is none of ours, revoked or expired. The message never holds it."""

    reason = "UNAUTHENTICATED"
    code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDeniedError(WhippletreeError):
    """The key or token is valid, but not for this; `needs=` a scope, or what it is for."""

    reason = "PERMISSION_DENIED"
    code = grpc.StatusCode.PERMISSION_DENIED


class RequestTooLargeError(WhippletreeError):
    """A body, or what it holds when it is decompressed, is over the limit."""

    reason = "REQUEST_TOO_LARGE"
    code = grpc.StatusCode.INVALID_ARGUMENT


class UnsupportedEncodingError(WhippletreeError):
    """A body is encoded in a way that is not served."""

    reason = "UNSUPPORTED_ENCODING"
    code = grpc.StatusCode.INVALID_ARGUMENT


class InternalError(WhippletreeError):
    """A fault of ours: the message never holds an exception's text."""


class ResumeTokenExpiredError(WhippletreeError):
    """The resume token is too old, or from another store: start the watch again without one."""

    reason = "RESUME_TOKEN_EXPIRED"
    code = grpc.StatusCode.OUT_OF_RANGE


class DeadlineError(WhippletreeError):
    """The caller's deadline passed."""

    reason = "DEADLINE"
    code = grpc.StatusCode.DEADLINE_EXCEEDED


class ServiceUnavailableError(WhippletreeError):
    """The other service gave no answer (made on the caller's side from a bare UNAVAILABLE)."""

    reason = "SHUTTING_DOWN"
    code = grpc.StatusCode.UNAVAILABLE


class RemoteError(WhippletreeError):
    """An error of the other side without a reason that this side knows; `status` holds its gRPC code."""

    def __init__(self, message: str, *, status: grpc.StatusCode) -> None:
        super().__init__(message)
        self.status = status


def from_rpc_error(error: grpc.RpcError) -> WhippletreeError:
    """The error that the other side raised; ServiceUnavailableError where it gave no answer at all."""
    code, details = error.code(), error.details() or ""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # every RpcError of a call is a Call
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status.details if status is not None else ():
        _ = detail.Unpack(info) or detail.Unpack(retry)
    if info.reason in _BY_REASON:
        found = _BY_REASON[info.reason](details)
        found.metadata = dict(info.metadata)
        found.retry_after = retry.retry_delay.ToTimedelta().total_seconds() if retry.HasField("retry_delay") else None
        return found
    if code == grpc.StatusCode.UNAVAILABLE:
        return ServiceUnavailableError(details)
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError(details)
    return RemoteError(details, status=code)


_BY_REASON: Mapping[str, type[WhippletreeError]] = {
    kind.reason: kind
    for kind in (
        InvalidFieldError,
        NotFoundError,
        AlreadyExistsError,
        RequestIdReusedError,
        WrongStateError,
        StaleAttemptError,
        RolloutEndedError,
        RewardNotFiniteError,
        ContextLengthExceededError,
        TokenOutOfVocabularyError,
        HeldTooLongError,
        EngineUnavailableError,
        ShuttingDownError,
        OverloadedError,
        StoreFullError,
        SupersededError,
        UnauthenticatedError,
        PermissionDeniedError,
        RequestTooLargeError,
        UnsupportedEncodingError,
        ResumeTokenExpiredError,
        DeadlineError,
    )
}
