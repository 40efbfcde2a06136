"""Generate: sampled once, recorded before it is answered, exact, and refused where it must be."""

import asyncio
import uuid
from pathlib import Path

import orjson
import pytest
from whippletree.v1 import attempt_pb2, event_pb2, inference_pb2, model_call_pb2, rollout_pb2

from gateway_svc.calls import FIRST_LOOK, head_from
from gateway_svc.types import CallHead, Finish, Micros, Mode, ModelName, Sampling
from tests.fakes.engine import Failure, FakeEngine, Reply
from tests.fakes.gateway import RunningGateway, packed, refused, running_gateway
from whippletree.errors import (
    ContextLengthExceededError,
    EngineUnavailableError,
    InvalidFieldError,
    NotFoundError,
    RequestIdReusedError,
    RolloutEndedError,
    StaleAttemptError,
    TokenOutOfVocabularyError,
    WhippletreeError,
)
from whippletree.tokens import unpack_floats, unpack_ids

LOST = attempt_pb2.ATTEMPT_OUTCOME_INFRASTRUCTURE_FAILURE
CANCEL = rollout_pb2.CancelRolloutRequest(name="rollouts/a")


async def calls(gateway: RunningGateway, rollout: str = "a") -> list[model_call_pb2.ModelCall]:
    return [event.model_call for event in await gateway.list_events(rollout) if event.HasField("model_call")]


async def test_what_is_answered_is_recorded_and_what_was_consumed(ready: RunningGateway, engine: FakeEngine) -> None:
    engine.reply = lambda ids: Reply([5, 6, 7], logprobs=[-0.25, -0.5, -2.0])
    answer = await ready.generate("a", [1, 2, 3])
    (found,) = await calls(ready)
    assert list(found.prompt_token_ids) == [1, 2, 3] == engine.requests("/generate")[0].body["input_ids"]
    assert list(found.response_token_ids) == [5, 6, 7] == unpack_ids(answer.response_token_ids).tolist()
    assert list(found.response_logprobs) == [-0.25, -0.5, -2.0] == unpack_floats(answer.response_logprobs).tolist()
    assert (found.call_id, found.engine, found.model) == (answer.call.call_id, engine.url, "models/tiny")
    assert (found.finish_reason, found.matched_stop) == (model_call_pb2.FINISH_REASON_STOP, "7")
    assert [(span.weight_version, span.start, span.end) for span in found.weight_versions] == [("default", 0, 3)]
    assert engine.requests("/generate")[0].body["rid"] == found.call_id
    assert not found.delivered


async def test_the_engine_gets_the_sampling_that_is_recorded(ready: RunningGateway, engine: FakeEngine) -> None:
    asked = inference_pb2.GenerateRequest(rollout="rollouts/a", attempt=1, prompt_token_ids=packed([1] * 2040))
    asked.sampling.CopyFrom(
        model_call_pb2.SamplingParams(temperature=0.1, max_tokens=99, stop=["END"], seed=4, top_p=0.5)
    )
    asked.choice_index = 2
    await ready.inference.Generate(asked)
    sent = engine.requests("/generate")[0].body["sampling_params"]
    assert sent == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "max_new_tokens": 8,
        "stop": ["END"],
        "sampling_seed": 6,
    }
    (found,) = await calls(ready)
    assert (found.sampling.temperature, found.sampling.max_tokens, found.sampling.seed) == (1.0, 8, 6)
    assert found.asked_sampling == '{"max_tokens":99,"temperature":0.1,"top_p":0.5}'


async def test_what_a_harness_asked_for_in_vain_is_recorded_by_name(ready: RunningGateway) -> None:
    asked = inference_pb2.GenerateRequest(
        rollout="rollouts/a", attempt=1, prompt_token_ids=packed([1, 2]), request_id=str(uuid.uuid4())
    )
    asked.ignored_fields.extend(["foo", "messages.ü\x00"])
    answer = await ready.inference.Generate(asked)
    assert await ready.inference.Generate(asked) == answer
    await ready.generate("a", [1])
    first, second = await calls(ready)
    assert list(first.ignored_fields) == list(answer.call.ignored_fields) == ["foo", "messages.ü\x00"]
    assert list(second.ignored_fields) == []


def test_a_call_from_before_ignored_fields_were_recorded_is_read() -> None:
    head = CallHead(
        model=ModelName("m"),
        dialect="openai.chat",
        mode=Mode.TRAIN,
        sampling=Sampling(),
        asked_sampling="",
        finish=Finish.STOP,
        matched_stop="",
        engine="e",
        start_time=Micros(1),
        hold=Micros(2),
        engine_time=Micros(3),
        spans=(),
    )
    stored = orjson.loads(orjson.dumps(head))
    assert stored.pop("ignored_fields") == []
    assert head_from(stored) == head


@pytest.mark.parametrize("names", [["x"] * 51, ["x" * 101]], ids=["too-many", "too-long"])
async def test_more_names_of_ignored_fields_than_are_kept_are_refused(ready: RunningGateway, names: list[str]) -> None:
    asked = inference_pb2.GenerateRequest(rollout="rollouts/a", attempt=1, prompt_token_ids=packed([1, 2]))
    asked.ignored_fields.extend(names)
    async with refused(InvalidFieldError):
        await ready.inference.Generate(asked)
    assert await calls(ready) == []


async def test_a_call_stores_only_what_its_prompt_adds(ready: RunningGateway, engine: FakeEngine) -> None:
    replies = {(1, 2): [3], (1, 2, 3, 4): [5, 6], (1, 2, 3, 4, 5, 6, 7): [8], (9,): [9], (1, 2, 3, 4, 5, 6): [1]}
    engine.reply = lambda ids: Reply(replies[tuple(ids)])
    for prompt in replies:
        await ready.generate("a", prompt)
    stored = [event.model_call for event in await ready.list_events("a", event_pb2.EVENT_VIEW_PACKED)]
    suffixes = [unpack_ids(call.packed.prompt_suffix).tolist() for call in stored]
    assert suffixes == [[1, 2], [4], [7], [9], []]
    parents = [call.parent_call_id for call in stored]
    ids = [call.call_id for call in stored]
    assert parents == ["", ids[0], ids[1], "", ids[1]]
    assert [call.shared_token_count for call in stored] == [0, 3, 6, 0, 6]
    expanded = await calls(ready)
    assert [tuple(call.prompt_token_ids) for call in expanded] == list(replies)
    assert [list(call.response_token_ids) for call in expanded] == list(replies.values())
    basic = await ready.list_events("a", event_pb2.EVENT_VIEW_BASIC)
    assert all(not event.model_call.prompt_token_ids for event in basic)
    assert not basic[0].model_call.HasField("packed")


async def test_a_parent_is_found_behind_many_longer_calls(ready: RunningGateway) -> None:
    first = await ready.generate("a", [1])
    for number in range(2 * FIRST_LOOK):
        await ready.generate("a", [9, number] * 10)
    later = await ready.generate("a", [1, 5, 6, 7] + [2] * 30)
    assert (later.call.parent_call_id, later.call.shared_token_count) == (first.call.call_id, 4)


async def test_another_attempt_shares_no_prefix(ready: RunningGateway) -> None:
    await ready.generate("a", [1, 2])
    lost = rollout_pb2.FinishRolloutRequest(name="rollouts/a", attempt=1, outcome=LOST)
    await ready.rollouts.FinishRollout(lost)
    await ready.rollouts.StartRollout(rollout_pb2.StartRolloutRequest(name="rollouts/a"))
    again = await ready.generate("a", [1, 2, 5, 6, 7], attempt=2)
    assert again.call.parent_call_id == ""


async def test_a_repeat_gets_the_recorded_response(ready: RunningGateway, engine: FakeEngine) -> None:
    key = str(uuid.uuid4())
    first = await ready.generate("a", [1, 2], request_id=key)
    assert await ready.generate("a", [1, 2], request_id=key) == first
    async with refused(RequestIdReusedError):
        await ready.generate("a", [1, 2, 3], request_id=key)
    assert len(engine.requests("/generate")) == len(await calls(ready)) == 1


async def test_a_repeat_joins_the_running_generation(ready: RunningGateway, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    callers = [asyncio.create_task(ready.generate("a", [1], request_id="k"))]
    await engine.wait_received("/generate")
    callers += [asyncio.create_task(ready.generate("a", [1], request_id="k")) for _ in range(3)]
    async with refused(RequestIdReusedError):
        await ready.generate("a", [2], request_id="k")
    gate.set()
    answers = await asyncio.gather(*callers)
    assert unpack_ids(answers[0].response_token_ids).tolist() == [5]
    assert answers == [answers[0]] * 4
    assert len(engine.requests("/generate")) == len(await calls(ready)) == 1


async def test_equal_prompts_without_a_common_id_are_two_samples(ready: RunningGateway, engine: FakeEngine) -> None:
    await asyncio.gather(ready.generate("a", [1], request_id="x"), ready.generate("a", [1], request_id="y"))
    assert len(engine.requests("/generate")) == len(await calls(ready)) == 2


@pytest.mark.parametrize("request_id", ["", "k"])
async def test_a_caller_that_goes_away_ends_the_generation(
    ready: RunningGateway, engine: FakeEngine, request_id: str
) -> None:
    engine.reply = lambda ids: Reply([5], gates={0: asyncio.Event()})
    caller = asyncio.create_task(ready.generate("a", [1], request_id=request_id))
    sent = (await engine.wait_received("/generate"))[0]
    caller.cancel()
    await asyncio.wait([caller])
    assert (await engine.wait_received("/abort_request"))[0].body == {"rid": sent.body["rid"]}
    assert not await calls(ready)


@pytest.mark.parametrize(
    ("prompt", "error", "metadata"),
    [
        ([], InvalidFieldError, {"field": "prompt_token_ids"}),
        ([1024], TokenOutOfVocabularyError, {"token": "1024", "vocabulary_size": "1024"}),
        ([-1], TokenOutOfVocabularyError, {"token": "-1", "vocabulary_size": "1024"}),
        ([1] * 2048, ContextLengthExceededError, {"prompt_tokens": "2048", "context_length": "2048"}),
        ([1] * 2042, ContextLengthExceededError, {"prompt_tokens": "2042", "context_length": "2048"}),
    ],
    ids=["empty", "above", "below", "long", "just too long"],
)
async def test_a_prompt_that_cannot_be_sampled_never_reaches_the_engine(
    ready: RunningGateway,
    engine: FakeEngine,
    prompt: list[int],
    error: type[WhippletreeError],
    metadata: dict[str, str],
) -> None:
    async with refused(error) as caught:
        await ready.generate("a", prompt)
    assert caught[0].metadata == metadata
    assert not engine.requests("/generate")


async def test_who_may_call(ready: RunningGateway, engine: FakeEngine) -> None:
    async with refused(StaleAttemptError):
        await ready.generate("a", [1], attempt=2)
    async with refused(NotFoundError):
        await ready.generate("none", [1])
    other = inference_pb2.GenerateRequest(
        rollout="rollouts/a", attempt=1, model="models/none", prompt_token_ids=packed([1])
    )
    async with refused(NotFoundError):
        await ready.inference.Generate(other)
    await ready.rollouts.CancelRollout(CANCEL)
    async with refused(RolloutEndedError):
        await ready.generate("a", [1])
    assert not engine.requests("/generate")


async def test_a_generation_that_ends_after_its_rollout_is_no_call_of_it(
    ready: RunningGateway, engine: FakeEngine
) -> None:
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    late = asyncio.create_task(ready.generate("a", [1]))
    await engine.wait_received("/generate")
    await ready.rollouts.CancelRollout(CANCEL)
    gate.set()
    async with refused(RolloutEndedError):
        await late
    assert not await calls(ready)


@pytest.mark.parametrize("failure", [Failure(), Failure(drop=True), Failure(status=503)], ids=["500", "cut", "503"])
async def test_a_passing_failure_of_the_engine_is_not_seen(
    ready: RunningGateway, engine: FakeEngine, failure: Failure
) -> None:
    engine.fail("/generate", failure, times=2)
    await ready.generate("a", [1])
    assert len(engine.requests("/generate")) == 3
    assert len(await calls(ready)) == 1


async def test_a_lasting_failure_says_so_and_records_nothing(ready: RunningGateway, engine: FakeEngine) -> None:
    engine.fail("/generate", times=4)
    async with refused(EngineUnavailableError):
        await ready.generate("a", [1], request_id="k")
    assert not await calls(ready)
    assert (await ready.generate("a", [1], request_id="k")).call.response_token_count == 3


async def test_a_refusal_of_the_engine_is_not_repeated(ready: RunningGateway, engine: FakeEngine) -> None:
    engine.fail("/generate", Failure(status=400, body={"error": {"message": "no such parameter"}}))
    async with refused(InvalidFieldError) as caught:
        await ready.generate("a", [1])
    assert "no such parameter" in caught[0].message
    assert len(engine.requests("/generate")) == 1


@pytest.mark.parametrize(
    "reply",
    [
        Reply([5, 6], logprobs=[-0.5, float("nan")]),
        Reply([5, 6], logprobs=[-0.5, float("-inf")]),
        Reply([5, 2000]),
        Reply([5], finish={"type": "abort", "message": "Aborted"}),
        Reply([], finish={"type": "abort", "message": "Aborted"}),
    ],
    ids=["nan", "infinite", "vocabulary", "aborted", "aborted before the first token"],
)
async def test_a_bad_answer_is_never_recorded(ready: RunningGateway, engine: FakeEngine, reply: Reply) -> None:
    good = Reply([5, 6])
    engine.reply = lambda ids: reply if len(engine.requests("/generate")) == 1 else good
    assert unpack_ids((await ready.generate("a", [1])).response_token_ids).tolist() == [5, 6]
    engine.reply = lambda ids: reply
    async with refused(EngineUnavailableError):
        await ready.generate("a", [1])
    assert len(await calls(ready)) == 1


async def test_a_model_without_engines_is_unavailable(gateway: RunningGateway) -> None:
    await gateway.register_model()
    await gateway.create_rollout("a")
    async with refused(EngineUnavailableError):
        await gateway.generate("a", [1])


async def test_a_step_reward_names_a_call(ready: RunningGateway) -> None:
    call_id = (await ready.generate("a", [1])).call.call_id
    asked = event_pb2.AppendEventRequest(
        parent="rollouts/a", attempt=1, reward=event_pb2.Reward(value=1.0, call_id=call_id)
    )
    assert (await ready.events.AppendEvent(asked)).event.reward.call_id == call_id


async def test_delivery_is_marked_once_and_for_all(ready: RunningGateway) -> None:
    call_id = (await ready.generate("a", [1])).call.call_id
    asked = inference_pb2.MarkDeliveredRequest(rollout="rollouts/a", call_ids=[call_id])
    await ready.rollouts.CancelRollout(CANCEL)
    for _ in range(2):
        await ready.inference.MarkDelivered(asked)
    (found,) = await calls(ready)
    assert found.delivered
    asked.call_ids.append("none")
    async with refused(NotFoundError):
        await ready.inference.MarkDelivered(asked)


async def test_one_report_marks_calls_of_several_rollouts_and_passes_over_those_that_are_gone(
    ready: RunningGateway,
) -> None:
    await ready.create_rollout("b")
    names = [(await ready.generate(rollout, [1])).call.call_id for rollout in ("a", "b")]
    await ready.inference.MarkDelivered(
        inference_pb2.MarkDeliveredRequest(rollout="rollouts/-", call_ids=[names[0], "gone", names[1]])
    )
    for rollout in ("a", "b"):
        (found,) = await calls(ready, rollout)
        assert found.delivered


async def test_a_stopping_gateway_aborts_what_runs(tmp_path: Path, engine: FakeEngine) -> None:
    engine.reply = lambda ids: Reply([5], gates={0: asyncio.Event()})
    async with running_gateway(tmp_path, grace=0.0) as gateway:
        await gateway.register_model(engine.url)
        await gateway.create_run("r")
        await gateway.create_rollout("a")
        caller = asyncio.create_task(gateway.generate("a", [1], request_id="k"))
        await engine.wait_received("/generate")
    async with refused(WhippletreeError):
        await caller
    assert await engine.wait_received("/abort_request")
