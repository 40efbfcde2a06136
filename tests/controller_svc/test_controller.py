"""The whole controller against a real gateway: rollouts in, ends out, nobody left, whoever is killed."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from whippletree.v1 import rollout_pb2

from controller_svc.local.leftovers import marked
from tests.fakes.controller import (
    CANCELLED,
    FAILED,
    LOST,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    attempts_of,
    controller_process,
    end_of,
    logs_of,
    python,
    rollout_in,
    shell,
)
from tests.fakes.gateway import RunningGateway, gateway_process, running_gateway
from tests.fakes.processes import script, until, until_nobody
from whippletree.channel import connect

FAMILY = "sleep 1000 & setsid sleep 1000 & setsid -f sleep 1000; echo up; "


@contextlib.asynccontextmanager
async def system(folder: Path, *arguments: str) -> AsyncIterator[tuple[RunningGateway, asyncio.subprocess.Process]]:
    """A gateway in this process and a controller in its own."""
    async with (
        prepared_gateway(folder) as gateway,
        controller_process(gateway.address, folder / "w", *arguments) as controller,
    ):
        yield gateway, controller


@contextlib.asynccontextmanager
async def prepared_gateway(folder: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(folder) as gateway:
        await gateway.register_model("http://127.0.0.1:9")
        await gateway.create_run()
        yield gateway


async def create(gateway: RunningGateway, name: str, runner: rollout_pb2.Runner) -> None:
    await gateway.create_rollout(name, start=False, runner=runner)


async def create_many(gateway: RunningGateway, names: Sequence[str], runner: rollout_pb2.Runner) -> None:
    requests = [
        rollout_pb2.CreateRolloutRequest(rollout_id=name, rollout=rollout_pb2.Rollout(run="runs/r", runner=runner))
        for name in names
    ]
    await gateway.rollouts.BatchCreateRollouts(rollout_pb2.BatchCreateRolloutsRequest(requests=requests))


async def up(folder: Path, name: str, attempt: int = 1) -> None:
    """Wait until the program of an attempt has written."""
    path = folder / f"w/attempts/{name}.{attempt}/stdout"
    await until(lambda: path.exists() and path.stat().st_size > 0, f"output of {name}.{attempt}")


async def test_many_python_rollouts_run_warm_and_once_each(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "agent.py",
        """
        import json, os, sys
        question = json.load(open(os.environ['WHIPPLETREE_INPUT'])).get('question')
        print(os.environ['WHIPPLETREE_ROLLOUT'], os.environ['WHIPPLETREE_ATTEMPT'], sys.argv[1], 'json' in sys.modules)
        """,
    )
    names = [f"r{number}" for number in range(128)]
    async with system(tmp_path, "--max_running", "16", "--start_rate", "1000") as (gateway, _):
        await create_many(gateway, names, python(path, "x", preload=("json", "asyncio")))
        ends = [await end_of(gateway, name) for name in names]
        assert {(end.state, end.attempt) for end in ends} == {(SUCCEEDED, 1)}
        for name in names[:3]:
            assert await logs_of(gateway, name) == [(1, "stdout", f"{name} 1 x True\n")]
        await until(lambda: os.listdir(tmp_path / "w/attempts") == [], "the removal of folders")  # noqa: PTH208


async def test_no_more_than_max_running_at_once_in_the_order_of_creation(tmp_path: Path) -> None:
    async with system(tmp_path, "--max_running", "1") as (gateway, _):
        for name in ("c", "a", "b"):
            await create(gateway, name, shell(f"ls {tmp_path}/w/attempts"))
        for name in ("c", "a", "b"):
            await end_of(gateway, name)
        assert [await logs_of(gateway, name) for name in ("c", "a", "b")] == [
            [(1, "stdout", f"{name}.1\n")] for name in ("c", "a", "b")
        ]


@pytest.mark.parametrize(
    ("text", "message", "output"),
    [
        ("echo a; echo b >&2; echo 'last words' >&2; exit 3", "exit code 3: last words", ["stdout", "stderr"]),
        ("kill -SEGV $$", "killed by SIGSEGV", []),
        ("no-such-program", "exit code 127: sh: 1: no-such-program: not found", ["stderr"]),
    ],
    ids=["exit code", "signal", "missing program"],
)
async def test_the_agent_s_own_failure_ends_the_rollout(
    text: str, message: str, output: list[str], tmp_path: Path
) -> None:
    async with system(tmp_path) as (gateway, _):
        await create(gateway, "r", shell(text))
        end = await end_of(gateway, "r")
        assert (end.state, end.attempt, end.state_message) == (FAILED, 1, message)
        assert [stream for _, stream, _ in await logs_of(gateway, "r")] == output


async def test_a_preload_that_fails_is_the_rollout_s_failure(tmp_path: Path) -> None:
    async with system(tmp_path) as (gateway, _):
        await create(gateway, "r", python(script(tmp_path, "a.py", ""), preload=("no_such_module",)))
        end = await end_of(gateway, "r")
        assert (end.state, end.attempt) == (FAILED, 1)
        assert end.state_message == "preload of no_such_module: ModuleNotFoundError: No module named 'no_such_module'"


async def test_a_deadline_ends_the_whole_family(tmp_path: Path) -> None:
    async with system(tmp_path, "--grace", "0.2") as (gateway, _):
        await create(gateway, "r", shell("trap '' TERM; " + FAMILY + "while :; do sleep 1000; done", timeout=0.5))
        end = await end_of(gateway, "r")
        assert (end.state, end.attempt, end.state_message) == (FAILED, 1, "deadline of 0.5 s passed")
        await until(lambda: not list(marked(tmp_path / "w/attempts")), "the end of the family")


async def test_a_cancelled_rollout_s_processes_end(tmp_path: Path) -> None:
    async with system(tmp_path) as (gateway, _):
        await create(gateway, "r", shell(FAMILY + "wait"))
        await up(tmp_path, "r")
        await gateway.rollouts.CancelRollout(rollout_pb2.CancelRolloutRequest(name="rollouts/r"))
        await until(lambda: not (tmp_path / "w/attempts/r.1").exists(), "the removal of its folder")
        await until(lambda: not list(marked(tmp_path / "w/attempts")), "the end of the family")
        assert (await end_of(gateway, "r")).state == CANCELLED


async def test_a_rollout_cancelled_while_queued_never_starts(tmp_path: Path) -> None:
    async with system(tmp_path, "--max_running", "1") as (gateway, _):
        await create(gateway, "first", shell("echo up; sleep 1000"))
        await up(tmp_path, "first")
        await create(gateway, "r", shell("true"))
        for name in ("r", "first"):
            await gateway.rollouts.CancelRollout(rollout_pb2.CancelRolloutRequest(name=f"rollouts/{name}"))
        await create(gateway, "last", shell("true"))
        assert (await end_of(gateway, "last")).state == SUCCEEDED
        assert await attempts_of(gateway, "r") == []


async def test_a_killed_controller_leaves_nobody_and_its_successor_tries_again(tmp_path: Path) -> None:
    path = script(
        tmp_path, "agent.py", "import os, time; print('up', flush=True); os.path.exists('go') or time.sleep(99)"
    )
    async with prepared_gateway(tmp_path) as gateway:
        async with controller_process(gateway.address, tmp_path / "w") as controller:
            await create(gateway, "python", python(path, preload=("json",)))
            await create(gateway, "shell", shell(FAMILY + '[ "$WHIPPLETREE_ATTEMPT" = 2 ] || wait'))
            await create(gateway, "out-of-attempts", shell("echo up; sleep 1000", max_attempts=1))
            for name in ("python", "shell", "out-of-attempts"):
                await up(tmp_path, name)
            controller.kill()
            await controller.wait()
            await until_nobody(tmp_path / "w")
        assert (await rollout_in(gateway, "shell", RUNNING)).attempt == 1
        async with controller_process(gateway.address, tmp_path / "w"):
            end = await end_of(gateway, "shell")
            assert (end.state, end.attempt) == (SUCCEEDED, 2)
            first, second = await attempts_of(gateway, "shell")
            assert (first.outcome, first.message) == (LOST, "the controller lost the process")
            assert first.worker == second.worker
            assert (await end_of(gateway, "out-of-attempts")).state == FAILED
            assert (await rollout_in(gateway, "python", RUNNING, attempt=2)).attempt == 2


async def test_what_survived_a_killed_controller_is_killed_by_its_successor(tmp_path: Path) -> None:
    async with prepared_gateway(tmp_path) as gateway:
        async with controller_process(gateway.address, tmp_path / "w") as controller:
            await create(gateway, "r", shell("setsid sleep 1000 & echo up; wait", max_attempts=1))
            await up(tmp_path, "r")
            servers = set(marked(tmp_path / "w")) - set(marked(tmp_path / "w/attempts"))
            for pid in (controller.pid, *servers):  # nobody is left to clean up
                os.kill(pid, signal.SIGSTOP)
            for pid in (*servers, controller.pid):
                os.kill(pid, signal.SIGKILL)
            await controller.wait()
        await until(lambda: len(list(marked(tmp_path / "w"))) == 1, "one survivor")
        async with controller_process(gateway.address, tmp_path / "w"):
            assert not list(marked(tmp_path / "w"))
            assert (await end_of(gateway, "r")).state == FAILED


async def test_a_stopped_controller_reports_what_it_ended(tmp_path: Path) -> None:
    async with system(tmp_path, "--grace", "0.5") as (gateway, controller):
        await create(gateway, "r", shell(FAMILY + "wait"))
        await create(gateway, "stubborn", shell("trap '' TERM; echo up; while :; do sleep 1; done"))
        for name in ("r", "stubborn"):
            await up(tmp_path, name)
        controller.terminate()
        assert await controller.wait() == 0
        assert not list(marked(tmp_path / "w"))
        for name in ("r", "stubborn"):
            assert (await rollout_in(gateway, name, QUEUED)).attempt == 1
            (attempt,) = await attempts_of(gateway, name)
            assert (attempt.outcome, attempt.message) == (LOST, "the controller was stopped")


async def test_a_controller_stops_though_the_gateway_is_gone(tmp_path: Path) -> None:
    async with gateway_process(tmp_path) as (gateway, process):
        await gateway.register_model("http://127.0.0.1:9")
        await gateway.create_run()
        async with controller_process(
            gateway.address, tmp_path / "w", "--patience", "0.2", "--grace", "0.5"
        ) as controller:
            await create(gateway, "r", shell("echo up; sleep 1000"))
            await up(tmp_path, "r")
            process.kill()
            await process.wait()
            controller.terminate()
            assert await controller.wait() == 0
            assert not list(marked(tmp_path / "w"))


async def test_a_killed_gateway_costs_no_attempt(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    path = script(tmp_path, "agent.py", "print(len('x' * 1000))")
    names = [f"r{number}" for number in range(60)]
    async with controller_process(address, tmp_path / "w", "--max_running", "4"):
        for life in range(3):
            async with gateway_process(tmp_path, "--listen", address) as (gateway, process):
                if life == 0:
                    await gateway.register_model("http://127.0.0.1:9")
                    await gateway.create_run()
                    await create_many(gateway, names, python(path, preload=("json",)))
                if life < 2:
                    await end_of(gateway, names[20 * life])
                    process.kill()
                    await process.wait()
                    continue
                ends = [await end_of(gateway, name) for name in names]
                assert {(end.state, end.attempt) for end in ends} == {(SUCCEEDED, 1)}
                assert [len(await logs_of(gateway, name)) for name in names] == [1] * 60


async def test_a_killed_fork_server_costs_an_attempt_not_the_rollout(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "agent.py",
        "import os, time; print('up', flush=True); os.environ['WHIPPLETREE_ATTEMPT'] == '2' or time.sleep(1000)",
    )
    async with system(tmp_path) as (gateway, _):
        await create(gateway, "r", python(path, preload=("json",)))
        await up(tmp_path, "r")
        server = min(marked(tmp_path / "w"))
        os.kill(server, signal.SIGKILL)
        end = await end_of(gateway, "r")
        assert (end.state, end.attempt) == (SUCCEEDED, 2)
        assert (await attempts_of(gateway, "r"))[0].message == "fork server died"


async def test_it_serves_health_and_refuses_a_work_root_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    async with system(tmp_path, "--listen", address):
        async with connect(address) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]  # its types lag behind
            answer = await check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(AssertionError):  # it does not come to listen
            async with controller_process("127.0.0.1:9", tmp_path / "w"):
                pass


def test_the_controller_s_parts_that_fork_know_nothing_of_grpc() -> None:
    assert grpc.__file__  # it is there to be imported
    for name in ("warm.py", "child.py", "agent_main.py"):
        text = (Path(__file__).parents[2] / "controller_svc/local" / name).read_text()
        assert "grpc" not in text
        assert "controller_svc" not in text
