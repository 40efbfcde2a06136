"""The typed client and the `rollouts` command against a real gateway with a fake engine."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from whippletree.v1 import event_pb2

from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import RunningGateway, running_gateway
from whippletree.client import Client, Model, open_client
from whippletree.errors import NotFoundError

COMMAND = (sys.executable, "-m", "whippletree.cli.main")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(tmp_path) as running, FakeEngine() as engine:
        await running.register_model(engine.url)
        await running.create_run("r")
        await running.create_rollout("first")
        await running.generate("first", [1, 2, 3])
        parent = "rollouts/first"
        reward = event_pb2.Reward(value=0.5)
        await running.events.AppendEvent(event_pb2.AppendEventRequest(parent=parent, attempt=1, reward=reward))
        log = event_pb2.Log(stream="stdout", text="[bold]done[/bold]\n")
        await running.events.AppendEvent(event_pb2.AppendEventRequest(parent=parent, attempt=1, log=log))
        await running.create_rollout("second", start=False)
        yield running


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[Client]:
    async with open_client(gateway.address) as opened:
        yield opened


async def test_rollouts_are_listed_in_order_and_by_state(client: Client) -> None:
    assert [item.rollout_id async for item in client.rollouts()] == ["first", "second"]
    found = [item async for item in client.rollouts(run_id="r", states=("running",))]
    assert [(item.rollout_id, item.state, item.split, item.attempt) for item in found] == [
        ("first", "running", "train", 1)
    ]
    assert found[0].input == {"question": "1 + 1"}


async def test_events_come_as_typed_values(client: Client) -> None:
    call, reward, log = [event async for event in client.events("first", tokens=True)]
    assert call.call is not None
    assert (call.call.prompt_token_ids, call.call.response_token_ids) == ((1, 2, 3), (5, 6, 7))
    assert len(call.call.response_logprobs) == call.call.response_token_count == 3
    assert (reward.reward, reward.reward_source, log.log) == (0.5, "agent", ("stdout", "[bold]done[/bold]\n"))
    assert call.sequence < reward.sequence < log.sequence


async def test_prompts_are_put_together_from_what_they_add_to_earlier_calls(
    client: Client, gateway: RunningGateway
) -> None:
    prompts = [(1, 2, 3, 5, 6, 7, 4), (1, 2, 3, 5, 6, 7, 8), (9,), (1, 2, 3, 5, 6, 7, 4, 5, 6, 7, 1)]
    for prompt in prompts:
        await gateway.generate("first", prompt)
    calls = [event.call async for event in client.events("first", tokens=True) if event.call is not None]
    assert [call.prompt_token_ids for call in calls] == [(1, 2, 3), *prompts]
    assert [call.shared_token_count for call in calls] == [0, 6, 6, 0, 10]


async def test_without_tokens_only_counts_are_sent(client: Client) -> None:
    first = await anext(client.events("first", tokens=False))
    assert first.call is not None
    assert (first.call.prompt_token_ids, first.call.prompt_token_count) == ((), 3)


async def test_what_does_not_exist_is_an_error_by_its_name(client: Client) -> None:
    with pytest.raises(NotFoundError):
        await client.rollout("nobody")


async def test_a_registered_model_is_read_back(client: Client) -> None:
    model = Model(
        model_id="policy",
        engine="http://127.0.0.1:9",
        tokenizer_path="/model",
        context_length=64,
        vocabulary_size=128,
    )
    await client.register_model(model)
    found = await client.model("policy")
    assert (found.engine, found.context_length, found.tokenizer_path) == ("http://127.0.0.1:9", 64, "/model")


async def command(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_the_command_lists_rollouts(gateway: RunningGateway) -> None:
    code, output = await command("rollouts", "list", "--gateway", gateway.address, "--state", "queued")
    assert code == 0
    assert "second" in output
    assert "first" not in output
    assert "1 rollouts" in output


async def test_the_command_shows_calls_rewards_and_output(gateway: RunningGateway) -> None:
    code, output = await command("rollouts", "show", "first", "--gateway", gateway.address)
    assert code == 0
    assert "3 + 3 tokens" in output
    assert "response ids [5, 6, 7]" in output
    assert "reward 0.5 from agent" in output
    assert "stdout: [bold]done[/bold]" in output


async def test_a_stopped_system_is_read_from_its_record(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as running, FakeEngine() as engine:
        await running.register_model(engine.url)
        await running.create_run("r")
        await running.create_rollout("kept")
    code, output = await command("rollouts", "list", "--run-dir", str(tmp_path))
    assert code == 0, output
    assert "kept" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            ("rollouts", "list", "--run-dir", "nowhere"), "--run-dir nowhere: nothing runs there", id="no record"
        ),
        pytest.param(("rollouts", "list", "--state", "lost"), "--state lost: choose from", id="unknown state"),
        pytest.param(("train", "nothing.toml"), "CONFIG: no such file: nothing.toml", id="no configuration"),
        pytest.param(("up", "--model", "nowhere"), "--model nowhere: no config.json there", id="no model"),
    ],
)
async def test_a_wrong_argument_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = await command(*arguments)
    assert code == 2
    assert output.startswith("error: ")
    assert message in output
    assert output.count("\n") == 1
