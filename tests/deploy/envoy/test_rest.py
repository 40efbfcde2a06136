"""The paper's endpoints (its Table 1) as plain HTTP, through the transcoder, against the real gateway."""

import httpx
import pytest

from tests.fakes.system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def run(whole: System, client: httpx.AsyncClient, run_id: str, *rollouts: str) -> None:
    """A run with these rollouts, queued."""
    made = await client.post(f"{whole.url}/api/runs", json={"run_id": run_id, "run": {"policy": "models/tiny"}})
    assert made.status_code == 200, made.text
    requests = [
        {"rollout_id": rollout, "rollout": {"run": f"runs/{run_id}", "input": {"question": "1 + 1"}}}
        for rollout in rollouts
    ]
    made = await client.post(f"{whole.url}/api/rollouts", json={"requests": requests})
    assert made.status_code == 200, made.text
    assert [answer["existed"] for answer in made.json()["responses"]] == [False] * len(rollouts)


async def test_a_rollouts_life(whole: System, client: httpx.AsyncClient) -> None:
    await run(whole, client, "rest", "rest-1", "rest-2")
    listed = await client.get(
        f"{whole.url}/api/rollouts", params={"run": "runs/rest", "states": "ROLLOUT_STATE_QUEUED"}
    )
    assert [rollout["name"] for rollout in listed.json()["rollouts"]] == ["rollouts/rest-1", "rollouts/rest-2"]
    one = f"{whole.url}/api/rollouts/rest-1"
    assert (await client.get(one)).json()["rollout"]["state"] == "ROLLOUT_STATE_QUEUED"
    running = await client.patch(one, json={"state": "ROLLOUT_STATE_RUNNING"})
    assert running.json()["rollout"]["attempt"] == 1
    event = {"reward": {"value": 0.0}, "request_id": "6b6f1d6e-6a77-4a1c-9c55-0d5a5bb0c001"}
    first = await client.post(f"{one}/attempt/1/events", json=event)
    again = await client.post(f"{one}/attempt/1/events", json=event)
    assert first.json() == again.json()
    note = await client.post(f"{one}/attempt/1/events", json={"note": {"type": "t", "data": {"a": [1, None, "é"]}}})
    assert note.status_code == 200
    events = (await client.get(f"{one}/events")).json()["events"]
    assert events[0]["reward"] == {"value": 0, "source": "agent", "call_id": ""}
    assert events[1]["note"]["data"] == {"a": [1, None, "é"]}
    ended = await client.patch(one, json={"state": "ROLLOUT_STATE_SUCCEEDED"})
    assert ended.json()["rollout"]["state"] == "ROLLOUT_STATE_SUCCEEDED"
    late = await client.post(f"{one}/attempt/1/events", json={"reward": {"value": 1}})
    assert (late.status_code, late.json()["details"][0]["reason"]) == (400, "ROLLOUT_ENDED")


async def test_an_engine_registers_sends_heartbeats_and_leaves(whole: System, client: httpx.AsyncClient) -> None:
    model = {"name": "models/rest", "context_length": 64, "vocabulary_size": 64}
    made = await client.post(f"{whole.url}/api/models", json={"model": model})
    assert made.status_code == 200, made.text
    engines = f"{whole.url}/api/models/rest/engines"
    added = await client.post(engines, json={"engine_id": "e", "engine": {"address": whole.engine.url, "lease": "60s"}})
    assert added.json()["engine"]["name"] == "models/rest/engines/e"
    beat = await client.post(f"{engines}/e:heartbeat", json={})
    assert (beat.status_code, beat.json()["engine"]["lease"]) == (200, "60s")
    found = (await client.get(f"{whole.url}/api/models/rest")).json()["model"]["engines"]
    assert [(one["address"], one["state"]) for one in found] == [(whole.engine.url, "ENGINE_STATE_HEALTHY")]
    assert (await client.delete(f"{engines}/e")).status_code == 200
    late = await client.post(f"{engines}/e:heartbeat", json={})
    assert (late.status_code, late.json()["details"][0]["reason"]) == (404, "NOT_FOUND")
    elsewhere = await client.post(engines, json={"engine_id": "e", "engine": {"address": "http://192.0.2.7:80"}})
    assert elsewhere.status_code == 400
    assert "engine.allowed" in elsewhere.json()["message"]
    await client.delete(f"{whole.url}/api/models/rest")


async def test_reward_that_is_not_finite_is_refused_and_nothing_recorded(
    whole: System, client: httpx.AsyncClient
) -> None:
    await run(whole, client, "nan", "nan-1")
    one = f"{whole.url}/api/rollouts/nan-1"
    await client.patch(one, json={"state": "ROLLOUT_STATE_RUNNING"})
    for value in ("NaN", "Infinity", "-Infinity"):
        answer = await client.post(f"{one}/attempt/1/events", json={"reward": {"value": value}})
        assert (answer.status_code, answer.json()["details"][0]["reason"]) == (400, "REWARD_NOT_FINITE")
    assert (await client.get(f"{one}/events")).json()["events"] == []


async def test_models_are_registered_and_removed(whole: System, client: httpx.AsyncClient) -> None:
    model = {
        "name": "models/rest",
        "engines": [{"address": whole.engine.url}],
        "vocabulary_size": 8,
        "context_length": 8,
    }
    made = await client.post(f"{whole.url}/api/models", json={"model": model})
    assert made.status_code == 200, made.text
    assert "models/rest" in [m["name"] for m in (await client.get(f"{whole.url}/api/models")).json()["models"]]
    assert (await client.delete(f"{whole.url}/api/models/rest")).status_code == 200
    assert (await client.get(f"{whole.url}/api/models/rest")).status_code == 404


async def test_wrong_value_is_refused_by_name(whole: System, client: httpx.AsyncClient) -> None:
    wrong = await client.post(f"{whole.url}/api/runs", json={"run_id": "x", "run": {"policy": "tiny"}})
    assert (wrong.status_code, wrong.json()["details"][0]["reason"]) == (400, "INVALID_FIELD")
    assert "policy" in wrong.json()["message"]
    typed = await client.post(f"{whole.url}/api/runs", json={"run_id": "x", "run": {"policy": 5}})
    assert (typed.status_code, typed.json()["code"]) == (400, 3)


async def test_unknown_field_of_a_body_is_ignored(whole: System, client: httpx.AsyncClient) -> None:
    # The transcoder has no switch for it: an older server takes a newer client's body.
    made = await client.post(
        f"{whole.url}/api/runs", json={"run_id": "unknown", "run": {"policy": "models/tiny"}, "new": {"a": 1}}
    )
    assert made.status_code == 200


async def test_a_run_is_deleted_with_its_rollouts(whole: System, client: httpx.AsyncClient) -> None:
    await whole.gateway.create_run("rest-gone")
    await whole.gateway.create_rollout("rest-gone-1", "rest-gone")
    refused = await client.delete(f"{whole.url}/api/runs/rest-gone")
    assert refused.status_code == 400
    assert "rollouts/rest-gone-1" in refused.text
    answer = await client.delete(f"{whole.url}/api/runs/rest-gone", params={"force": "true"})
    assert (answer.status_code, answer.json()["deleted_rollout_count"]) == (200, "1")
    assert (await client.get(f"{whole.url}/api/rollouts/rest-gone-1")).status_code == 404


async def test_a_long_answer_is_whole_and_a_note_over_its_limit_a_clear_refusal(
    whole: System, client: httpx.AsyncClient
) -> None:
    await run(whole, client, "long", "long-1")
    one = f"{whole.url}/api/rollouts/long-1"
    await client.patch(one, json={"state": "ROLLOUT_STATE_RUNNING"})
    texts = [letter * 900_000 for letter in "abcdef"]
    for text in texts:
        made = await client.post(f"{one}/attempt/1/events", json={"note": {"type": "t", "data": {"text": text}}})
        assert made.status_code == 200
    refused = await client.post(
        f"{one}/attempt/1/events", json={"note": {"type": "t", "data": {"text": "a" * (1 << 20)}}}
    )
    assert (refused.status_code, refused.json()["details"][0]["reason"]) == (400, "INVALID_FIELD")
    answer = await client.get(f"{one}/events")
    assert answer.status_code == 200
    assert [event["note"]["data"]["text"] for event in answer.json()["events"]] == texts
