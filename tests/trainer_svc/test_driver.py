"""Whole runs of the real driver with a real gateway; ranks, agents and engine are fakes at their own edges."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from whippletree.v1 import rollout_pb2

from tests.fakes.agents import Agents
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import RunningGateway, gateway_process, running_gateway
from tests.fakes.ranks import interpreter

MODEL = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 100,
}
CONFIG = """
[run]
name = "demo"
[model]
path = "model"
name = "tiny"
[data]
train = "train.jsonl"
heldout = "heldout.jsonl"
[agent]
command = ["unused"]
[warmup]
steps = 5
batch = 2
demonstrations = "demonstrations.jsonl"
[rl]
steps = 3
groups = 2
group_size = 2
[evaluation]
questions = 2
every = 0
[backend]
token_cap = 16
[checkpoint]
every = 1
weights = "all"
"""


def play(rollout_id: str, task: dict[str, Any]) -> float | None:
    """Every second rollout earns the reward, so that every group teaches something."""
    return float(int(rollout_id.rpartition("-")[2].partition("r")[0]) % 2)


@dataclass(slots=True, kw_only=True)
class System:
    """Everything around the driver."""

    folder: Path
    gateway: RunningGateway
    engine: FakeEngine
    agents: Agents
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.folder / "runs" / "demo"

    def lines(self) -> list[dict[str, Any]]:
        """metrics.jsonl."""
        return [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]

    def steps(self, loss: str = "policy") -> list[dict[str, Any]]:
        """What the fake ranks were given."""
        log = [json.loads(line) for line in (self.folder / "steps.jsonl").read_text().splitlines()]
        return [line for line in log if line["loss"] == loss]

    @contextlib.asynccontextmanager
    async def driver(self, *overrides: str, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """`python -m trainer_svc` in a process of its own."""
        sets = [argument for item in overrides for argument in ("--set", item)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "trainer_svc", str(self.folder / "config.toml"), *sets),
            *("--insecure_dev", "true", "--gateway", self.gateway.address, "--runs", str(self.folder / "runs")),
            *("--cache", str(self.folder / "cache"), "--python", str(self.folder / "python")),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "FAKE_RANKS_LOG": str(self.folder / "steps.jsonl"), **environment},
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
            process._transport.close()  # type: ignore[attr-defined]  # else the garbage collector does, with a warning

    async def train(self, *overrides: str, **environment: str) -> tuple[int | None, str]:
        """A driver to its end: (exit code, what it printed)."""
        async with self.driver(*overrides, **environment) as process:
            output, _ = await process.communicate()
            return process.returncode, output.decode()

    async def rollouts(self) -> Sequence[rollout_pb2.Rollout]:
        """All that the gateway knows."""
        return (await self.gateway.rollouts.ListRollouts(rollout_pb2.ListRolloutsRequest(page_size=1000))).rollouts


def write_files(folder: Path) -> None:
    """Configuration, model, data and the ranks' interpreter."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(MODEL))
    (folder / "train.jsonl").write_text("".join(f'{{"question": {number}}}\n' for number in range(5)))
    (folder / "heldout.jsonl").write_text("".join(f'{{"question": {number}}}\n' for number in range(10, 14)))
    demonstration = json.dumps({"token_ids": [1, 2, 3, 4], "loss_mask": [0, 0, 1, 1]})
    (folder / "demonstrations.jsonl").write_text((demonstration + "\n") * 3)
    (folder / "config.toml").write_text(CONFIG)
    interpreter(folder)


@contextlib.asynccontextmanager
async def around(folder: Path, gateway: RunningGateway, engine: FakeEngine) -> AsyncIterator[System]:
    """Agents at work beside the gateway; the gate is open."""
    write_files(folder)
    await gateway.register_model(engine.url)
    agents = Agents(play=play)
    agents.gate.set()
    work = asyncio.create_task(agents.run(gateway.address))
    try:
        yield System(folder=folder, gateway=gateway, engine=engine, agents=agents)
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    """The whole, with the gateway in this process."""
    async with running_gateway(tmp_path) as gateway, FakeEngine() as engine, around(tmp_path, gateway, engine) as made:
        yield made


def ranks_of(folder: Path) -> list[str]:
    """Process ids of ranks and their keepers that were started by a driver of this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"FAKE_RANKS_LOG={folder}/".encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


async def no_ranks_left(system: System) -> None:
    """Wait until no process of the ranks is left; the keeper needs a moment after a kill."""
    for _ in range(1200):
        if not ranks_of(system.folder):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(ranks_of(system.folder))


async def test_a_run_trains_publishes_measures_and_sums_up(system: System) -> None:
    code, output = await system.train()
    assert code == 0, output
    summary = json.loads((system.run / "summary.json").read_text())
    run_id = (system.run / "run_id").read_text().strip()
    assert summary["run_id"] == run_id
    assert (summary["accuracy_before"], summary["accuracy_after"]) == (0.5, 0.5)
    assert (summary["steps"], summary["rollouts"], summary["samples_per_rollout"]) == (3, 12, 1.0)
    assert summary["weight_version"] == f"{run_id}-0003"
    # each rollout: two calls of three tokens by the fake engine
    assert summary["trained_tokens"] == summary["recorded_tokens"] == 12 * 6
    assert [line["step"] for line in system.lines()] == [0, 1, 2, 3]
    assert [line["reward"] for line in system.lines()[1:]] == [0.5] * 3
    updates = [request.body["model_path"] for request in system.engine.requests("/update_weights_from_disk")]
    assert updates == [str(system.run / "weights" / f"{run_id}-{step:04d}") for step in range(4)]
    assert [(Path(path) / "updates").read_text() for path in updates] == ["0", "1", "2", "3"]
    assert (system.run / "plots" / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(r"3 +. +0\.500 +. +0\.500 +. +1\.000 +. +24 +. +0003 ", output), output
    assert len(list((system.run / "checkpoints").glob("step-*"))) == 2
    assert (system.run / "config.resolved.toml").exists()
    await no_ranks_left(system)


async def test_ranks_get_every_sample_once_with_weights_that_sum_to_one(system: System) -> None:
    code, output = await system.train("rl.steps=1")
    assert code == 0, output
    assert [line["step"] for line in system.steps("sft")] == [1, 2, 3, 4, 5]
    assert all(line["weight"] == pytest.approx(1) for line in system.steps("sft"))
    (step,) = system.steps()
    run_id = (system.run / "run_id").read_text().strip()
    assert step["rows"] == [f"{run_id}-s0001-{index:04d}/0" for index in range(4)]
    assert step["weight"] == pytest.approx(1)
    assert step["signed"] == pytest.approx(0, abs=1e-6)  # advantages of equal groups cancel
    assert step["tokens"] <= 16
    assert sum(step["micro_batches"].values()) == 4  # samples of 9 tokens under a cap of 16


async def test_warm_up_is_done_once_for_a_recipe(system: System) -> None:
    assert (await system.train("rl.steps=1"))[0] == 0
    assert (await system.train("rl.steps=2"))[0] == 0
    assert len(system.steps("sft")) == 5


async def test_failed_rollouts_are_dropped_and_a_step_without_variance_changes_no_weights(system: System) -> None:
    def fail_in_step_two(rollout_id: str, task: dict[str, Any]) -> float | None:
        if "-s0002-" in rollout_id:
            return None if rollout_id.endswith("1") else 1.0
        return play(rollout_id, task)

    system.agents.play = fail_in_step_two
    code, output = await system.train("rl.steps=2")
    assert code == 0, output
    line = system.lines()[2]
    assert (line["rollouts"], line["dropped_rollouts"], line["updates"], line["reward"]) == (3, 1, 0, 1.0)
    assert line["weight_version"].endswith("-0001")
    assert len(system.steps()) == 1


async def test_a_dead_rank_ends_the_run_with_its_last_words(system: System) -> None:
    code, output = await system.train(FAKE_RANKS_DIE_AT="2")
    assert code == 1
    assert "exit code 7" in output
    assert "out of memory, says the fake rank" in output
    assert "Traceback" not in output
    await no_ranks_left(system)


async def test_a_killed_driver_goes_on_where_it_was_and_doubles_nothing(system: System) -> None:
    system.agents.held = lambda rollout_id: "-s0003-" in rollout_id
    system.agents.gate.clear()
    async with system.driver() as process:
        await system.agents.wait_started(2 + 3 * 4)  # the evaluation, and all rollouts of step 3
        process.kill()
        await process.wait()
    run_id = (system.run / "run_id").read_text()
    await no_ranks_left(system)
    system.agents.gate.set()
    code, output = await system.train()
    assert code == 0, output
    assert "going on with" in output
    assert (system.run / "run_id").read_text() == run_id
    assert [line["step"] for line in system.lines()] == [0, 1, 2, 3]
    assert len(await system.rollouts()) == 3 * 4 + 2 * 2
    summary = json.loads((system.run / "summary.json").read_text())
    assert (summary["rollouts"], summary["steps"], summary["accuracy_before"]) == (12, 3, 0.5)
    newest = system.run / "weights" / summary["weight_version"] / "updates"
    assert newest.read_text() == "3"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_stopped_driver_cancels_what_runs_and_can_go_on(system: System, number: signal.Signals) -> None:
    system.agents.gate.clear()
    async with system.driver("evaluation.questions=0") as process:
        await system.agents.wait_started(4)
        process.send_signal(number)
        output, _ = await process.communicate()
    assert process.returncode == 130, output.decode()
    assert "goes on" in output.decode()
    states = {rollout.state for rollout in await system.rollouts()}
    assert states == {rollout_pb2.ROLLOUT_STATE_CANCELLED}
    await no_ranks_left(system)
    system.agents.gate.set()
    code, text = await system.train("evaluation.questions=0")
    assert code == 0, text
    ids = [re.sub(r".*-s", "", rollout.name) for rollout in await system.rollouts()]
    assert sorted(name for name in ids if name.startswith("0001")) == sorted(
        f"0001-{index:04d}{again}" for index in range(4) for again in ("", "r1")
    )


async def test_an_unknown_model_is_a_clear_error(system: System) -> None:
    code, output = await system.train("model.name=other")
    assert code == 1
    assert "other" in output
    assert "Traceback" not in output
    assert not system.run.exists()


async def test_a_gateway_that_admits_longer_calls_than_the_model_has_positions_is_refused_at_the_start(
    system: System,
) -> None:
    await system.gateway.register_model(system.engine.url, context_length=2049)
    code, output = await system.train()
    assert code == 2
    assert "2048 positions, fewer than the 2049 tokens" in output
    assert not await system.rollouts()


async def test_a_configuration_that_does_not_fit_ends_with_2(system: System) -> None:
    code, output = await system.train("rl.stepps=1")
    assert code == 2
    assert "rl.stepps" in output


async def test_a_gateway_killed_in_the_middle_is_waited_out(tmp_path: Path) -> None:
    async with FakeEngine() as engine, contextlib.AsyncExitStack() as stack:
        gateway, process = await stack.enter_async_context(gateway_process(tmp_path))
        system = await stack.enter_async_context(around(tmp_path, gateway, engine))
        system.agents.gate.clear()
        async with system.driver("evaluation.questions=0") as driver:
            await system.agents.wait_started(3)
            process.kill()
            await process.wait()
            system.agents.gate.set()
            await stack.enter_async_context(gateway_process(tmp_path, "--listen", gateway.address))
            output, _ = await driver.communicate()
        assert driver.returncode == 0, output.decode()
        assert [line["rollouts"] for line in system.lines()[1:]] == [4, 4, 4]
        assert len(await system.rollouts()) == 12
