"""What is kept of recorded sequences: it saves work, changes no hash, and stays within its bound."""

from whippletree.v1 import inference_pb2

from gateway_svc import convert_calls, prefix
from gateway_svc.recent import Recent
from gateway_svc.types import RolloutId
from whippletree.tokens import pack_ids

PLACE = (RolloutId("a"), 1)
FIRST, MORE = pack_ids([1, 2, 3]), pack_ids([1, 2, 3, 4, 5])


def kept(recent: Recent, prompt: bytes, response: bytes = b"") -> None:
    recent.add(PLACE, recent.hashed(PLACE, prompt), response)


def test_a_prompt_that_continues_a_sequence_is_read_from_its_end_on() -> None:
    recent = Recent()
    kept(recent, FIRST, pack_ids([4]))
    found = recent.hashed(PLACE, MORE)
    assert found.position == 16
    assert found.digest == prefix.hashed(MORE).digest


def test_a_prompt_that_differs_or_belongs_elsewhere_is_read_from_the_beginning() -> None:
    recent = Recent()
    kept(recent, FIRST)
    assert recent.hashed(PLACE, pack_ids([1, 2, 4, 4])).position == 0
    assert recent.hashed((RolloutId("a"), 2), MORE).position == 0
    assert recent.hashed((RolloutId("b"), 1), MORE).position == 0


def test_branches_are_kept_side_by_side_and_the_longest_is_chosen() -> None:
    recent = Recent()
    kept(recent, pack_ids([1, 9]))
    kept(recent, pack_ids([1, 2]))
    kept(recent, pack_ids([1, 2, 3]))
    assert recent.hashed(PLACE, MORE).position == 12
    assert recent.hashed(PLACE, pack_ids([1, 9, 9])).position == 8


def test_what_is_kept_is_bounded_and_the_least_used_is_forgotten() -> None:
    recent = Recent(limit=100)
    for number in range(50):
        place = (RolloutId(f"r{number}"), 1)
        recent.add(place, recent.hashed(place, pack_ids([number] * 5)), b"")
    assert recent.hashed((RolloutId("r0"), 1), pack_ids([0] * 6)).position == 0
    assert recent.hashed((RolloutId("r49"), 1), pack_ids([49] * 6)).position == 20
    recent.add(PLACE, recent.hashed(PLACE, bytes(400)), b"")
    assert recent.hashed(PLACE, bytes(404)).position == 0


def test_a_request_is_known_by_its_whole_body_whatever_was_read_before() -> None:
    def digest(recent: Recent, change: inference_pb2.GenerateRequest | None = None) -> bytes:
        request = inference_pb2.GenerateRequest(rollout="rollouts/a", attempt=1, prompt_token_ids=MORE, request_id="q")
        request.MergeFrom(change or inference_pb2.GenerateRequest())
        once = convert_calls.ask(request, recent).once
        assert once is not None
        return once.digest

    recent = Recent()
    kept(recent, FIRST)
    assert digest(recent) == digest(Recent())
    others = [
        inference_pb2.GenerateRequest(prompt_token_ids=FIRST),
        inference_pb2.GenerateRequest(attempt=2),
        inference_pb2.GenerateRequest(dialect="x"),
        inference_pb2.GenerateRequest(asked_sampling=MORE.decode()),
        inference_pb2.GenerateRequest(ignored_fields=["foo"]),
    ]
    assert len({digest(recent), *(digest(recent, other) for other in others)}) == 6
