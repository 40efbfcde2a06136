"""The contract as a whole: every rpc that changes something can be repeated."""

from collections.abc import Iterator

from google.protobuf.descriptor import MethodDescriptor
from whippletree.v1 import (
    attempt_pb2,
    event_pb2,
    identity_pb2,
    inference_pb2,
    model_pb2,
    phase_pb2,
    rollout_pb2,
    run_pb2,
)

FILES = (attempt_pb2, event_pb2, identity_pb2, inference_pb2, model_pb2, phase_pb2, rollout_pb2, run_pb2)
READS = ("Get", "List", "Watch", "Export")
"""How the names of rpcs begin that change nothing."""
WITHOUT = {
    "HeartbeatEngine": "it says that the engine lives now",
    "IssueToken": "it stores nothing: a token is signed, not kept",
    "MarkDelivered": "delivered is final",
    "MarkUndelivered": "only the latest request that was given a call can lose it, and it is named",
}
"""Why an rpc needs no request_id: a repeat, however late, changes nothing."""


def mutations() -> Iterator[MethodDescriptor]:
    """The gateway's rpcs that change something."""
    for file in FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            yield from (method for method in service.methods if not method.name.startswith(READS))


def test_every_rpc_that_changes_something_takes_a_request_id_or_says_why_not() -> None:
    found = {method.name: method for method in mutations()}
    assert len(found) > 10
    assert set(WITHOUT) <= set(found)
    without = {name for name, method in found.items() if "request_id" not in method.input_type.fields_by_name}
    assert without == set(WITHOUT)
