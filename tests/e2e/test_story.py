"""A short training run with accidents, looked at from outside: what is left, what is recorded, what was trained."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import GROUP_SIZE, GROUPS, ROOT, STEPS, Story
from whippletree.cli.project import TRAIN_PYTHON
from whippletree.client import Call, Client, Event, Rollout

pytestmark = pytest.mark.e2e


async def record(client: Client) -> dict[str, tuple[Rollout, list[Event]]]:
    """Everything: rollout id -> (rollout, events with tokens)."""
    rollouts = [rollout async for rollout in client.rollouts()]
    return {
        item.rollout_id: (item, [event async for event in client.events(item.rollout_id, tokens=True)])
        for item in rollouts
    }


def calls_of(events: list[Event]) -> list[Call]:
    return [event.call for event in events if event.call is not None]


def test_ctrl_c_in_a_step_leaves_no_process(story: Story) -> None:
    assert story.interrupted_code == 130
    assert story.left_after_interrupt == {}


def test_the_end_leaves_no_process(story: Story) -> None:
    assert (story.code, story.left) == (0, {})


def test_the_same_command_goes_on_where_it_was(story: Story) -> None:
    assert "going on with" in story.place.output()
    assert story.summary["steps"] == STEPS
    assert story.summary["rollouts"] == STEPS * GROUPS * GROUP_SIZE


def test_the_results_are_there(story: Story) -> None:
    results = story.place.results
    lines = [json.loads(line) for line in (results / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(STEPS + 1))
    assert len({line["weight_version"] for line in lines}) > 1
    assert list((results / "plots").glob("*.png"))
    assert (results / "config.resolved.toml").is_file()
    assert 0 <= story.summary["accuracy_before"] <= 1
    assert 0 <= story.summary["accuracy_after"] <= 1


def test_the_killed_gateway_was_started_again(story: Story) -> None:
    assert "ended by SIGKILL; starting again" in story.place.output()
    assert "ready again" in story.place.output()


async def test_no_acknowledged_event_is_missing_or_doubled(client: Client, story: Story) -> None:
    found = await record(client)
    sequences = [event.sequence for _, events in found.values() for event in events]
    assert len(sequences) == len(set(sequences))
    for rollout, events in found.values():
        assert [event.sequence for event in events] == sorted(event.sequence for event in events)
        if rollout.state != "succeeded":
            continue
        of_attempt = [event for event in events if event.attempt == rollout.attempt]
        assert sum(event.reward is not None for event in of_attempt) == 1, rollout.rollout_id
        noted = [str(event.note[1]["call_id"]) for event in of_attempt if event.note is not None]
        recorded = [call.call_id for call in calls_of(of_attempt)]
        assert noted
        assert len(recorded) == len(set(recorded))
        assert sorted(noted) == sorted(recorded), rollout.rollout_id


async def test_trained_tokens_are_the_recorded_response_tokens(client: Client, story: Story) -> None:
    train = [
        (rollout, events)
        for rollout, events in (await record(client)).values()
        if rollout.split == "train" and rollout.state == "succeeded"
    ]
    assert len(train) == STEPS * GROUPS * GROUP_SIZE
    recorded = sum(
        call.response_token_count
        for rollout, events in train
        for event in events
        if event.attempt == rollout.attempt and (call := event.call) is not None
    )
    assert story.summary["recorded_tokens"] == recorded
    assert story.summary["trained_tokens"] == recorded


async def test_prompts_and_logprobs_are_what_transformers_computes(
    client: Client, story: Story, tmp_path: Path
) -> None:
    lines = []
    for _, events in (await record(client)).values():
        notes = {str(event.note[1]["call_id"]): event.note[1] for event in events if event.note is not None}
        for call in calls_of(events):
            assert len(call.weight_versions) == 1
            line = {
                "call_id": call.call_id,
                "prompt": call.prompt_token_ids,
                "response": call.response_token_ids,
                "logprobs": call.response_logprobs,
                "version": call.weight_versions[0],
            }
            if call.call_id in notes:
                line |= {key: json.loads(notes[call.call_id][key]) for key in ("messages", "tools")}
            lines.append(json.dumps(line))
    (tmp_path / "calls.jsonl").write_text("\n".join(lines))
    result = await recompute(tmp_path / "calls.jsonl", story)
    assert result["calls"] == len(lines)
    assert result["wrong"] == []
    assert result["rendered"] > result["calls"] // 2
    assert len(result["versions"]) > 1
    assert result["worst"] < 1e-3


async def recompute(calls: Path, story: Story) -> dict[str, Any]:
    """Run recompute.py."""
    process = await asyncio.create_subprocess_exec(
        TRAIN_PYTHON,
        Path(__file__).with_name("recompute.py"),
        calls,
        ROOT / ".cache/quickstart/seed-5/model",
        story.place.results / "weights",
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    result: dict[str, Any] = json.loads(output.decode().splitlines()[-1])
    return result
