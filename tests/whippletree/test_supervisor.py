"""The supervisor with real processes: small HTTP programs in the parts' place."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from whippletree.cli import ports
from whippletree.cli.health import HttpHealth
from whippletree.cli.parts import Part, log_path
from whippletree.cli.restart import RestartPolicy
from whippletree.cli.supervisor import PartError, Supervisor, run_job

PROGRAM = Path(__file__).parents[1] / "fakes" / "part.py"


def part(name: str, *options: str, port: int | None = None, patience: float = 20.0, grace: float = 5.0) -> Part:
    chosen = port or ports.free_ports(1)[0]
    return Part(
        name=name,
        command=(sys.executable, str(PROGRAM), str(chosen), *options),
        ready=HttpHealth(address=f"127.0.0.1:{chosen}", path="/health"),
        address=f"127.0.0.1:{chosen}",
        port_setting=f"--{name}-port",
        patience=patience,
        grace=grace,
    )


def silent(name: str, what: str) -> None:
    """Report nothing."""


def pid_of(one: Part) -> int:
    with urllib.request.urlopen(f"http://{one.address}/pid", timeout=5) as answer:
        return int(answer.read())


def alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


async def test_parts_are_ready_when_start_returns_and_gone_after_the_block(tmp_path: Path) -> None:
    first, second = part("first"), part("second")
    stopped: list[str] = []

    def report(name: str, what: str) -> None:
        if what == "stopped":
            stopped.append(name)

    async with Supervisor(tmp_path, report) as supervisor:
        await supervisor.start([first])
        await supervisor.start([second])
        pids = supervisor.pids
        assert pids == {"first": pid_of(first), "second": pid_of(second)}
        assert os.getsid(pids["first"]) == pids["first"]
    assert stopped == ["second", "first"]
    assert not any(alive(pid) for pid in pids.values())
    assert "hello from the part" in log_path(tmp_path, "first").read_text()


async def test_a_killed_part_is_started_again_on_its_port(tmp_path: Path) -> None:
    one, changes, restarts = part("one"), [0], [0]

    async def restarted() -> None:
        restarts[0] += 1

    def changed() -> None:
        changes[0] += 1

    policy = RestartPolicy(first_delay=0.01)
    async with Supervisor(tmp_path, silent, policy=policy, on_change=changed) as supervisor:
        await supervisor.start([one])
        supervisor.after_restart("one", restarted)
        before = pid_of(one)
        os.kill(before, signal.SIGKILL)
        await eventually(lambda: restarts[0] == 1)
        assert pid_of(one) == supervisor.pids["one"] != before
        assert changes[0] == 2


async def test_a_grandchild_in_its_own_session_ends_with_its_part(tmp_path: Path) -> None:
    book = tmp_path / "pids"
    one = part("one", "--escape", str(book))
    async with Supervisor(tmp_path, silent, policy=RestartPolicy(first_delay=0.01)) as supervisor:
        await supervisor.start([one])
        os.kill(supervisor.pids["one"], signal.SIGKILL)
        await eventually(lambda: len(book.read_text().split()) == 2)
        first, second = map(int, book.read_text().split())
        await eventually(lambda: not alive(first))
        assert alive(second)
    assert not alive(second)


async def test_a_part_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    one = part("one", "--deaf", grace=0.2)
    async with Supervisor(tmp_path, silent) as supervisor:
        await supervisor.start([one])
        pid = supervisor.pids["one"]
    assert not alive(pid)


async def test_a_taken_port_is_named_with_its_setting(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        async with Supervisor(tmp_path, silent) as supervisor:
            with pytest.raises(PartError, match=rf"^web: port {port} is taken; choose another with --web-port$"):
                await supervisor.start([part("web", port=port)])


async def test_a_part_that_dies_while_starting_is_named_with_code_and_log(tmp_path: Path) -> None:
    healthy, broken = part("healthy"), part("broken", "--die", "3")
    async with Supervisor(tmp_path, silent) as supervisor:
        with pytest.raises(PartError, match=r"(?s)^broken: ended with exit code 3.*broken\.log.*cannot go on$"):
            await supervisor.start([healthy, broken])
        pid = supervisor.pids["healthy"]
    assert not alive(pid)


async def test_a_missing_program_is_named(tmp_path: Path) -> None:
    one = part("one")
    lost = Part(name="lost", command=("/no/such/program",), ready=one.ready, address=one.address, port_setting="-")
    async with Supervisor(tmp_path, silent) as supervisor:
        with pytest.raises(PartError, match="cannot start /no/such/program: No such file"):
            await supervisor.start([lost])


async def test_a_part_that_dies_again_and_again_fails_the_system(tmp_path: Path) -> None:
    one = part("one")
    async with Supervisor(tmp_path, silent, policy=RestartPolicy(first_delay=0.01, max_quick_deaths=2)) as supervisor:
        await supervisor.start([one])
        failed = asyncio.create_task(supervisor.failed())
        first = supervisor.pids["one"]
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: supervisor.pids["one"] != first)
        os.kill(supervisor.pids["one"], signal.SIGKILL)
        with pytest.raises(PartError, match=r"^one: ended by SIGKILL, 2 times in a row"):
            async with asyncio.timeout(20):
                await failed


async def test_a_part_that_is_never_ready_is_given_up_after_its_patience(tmp_path: Path) -> None:
    port, other = ports.free_ports(2)
    one = part("one", port=port)
    mute = Part(
        name="mute",
        command=one.command,
        ready=HttpHealth(address=f"127.0.0.1:{other}", path="/"),
        address=one.address,
        port_setting="-",
        patience=0.3,
    )
    async with Supervisor(tmp_path, silent) as supervisor:
        with pytest.raises(PartError, match="mute: not ready after 0 s"):
            await supervisor.start([mute])


async def test_a_job_gives_its_exit_code_and_its_output(tmp_path: Path) -> None:
    code = await run_job(
        [sys.executable, "-c", "import os; print(os.environ['GREETING']); raise SystemExit(7)"],
        {"GREETING": "good day"},
        grace=1.0,
        log=tmp_path / "job.log",
    )
    assert (code, (tmp_path / "job.log").read_text()) == (7, "good day\n")


async def test_a_cancelled_job_is_stopped(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    job = asyncio.create_task(run_job([sys.executable, "-c", program], {}, grace=1.0, log=log))
    await eventually(lambda: log.is_file() and log.read_text().endswith("\n"))
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert not alive(int(log.read_text()))


SUPERVISE = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.whippletree.test_supervisor import part, silent
from whippletree.cli.supervisor import Supervisor

async def main():
    async with Supervisor(Path(sys.argv[2]), silent) as supervisor:
        await supervisor.start([part("one", "--escape", sys.argv[2] + "/pids")])
        print(supervisor.pids["one"], flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_nothing_is_left_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    with subprocess.Popen([sys.executable, "-c", SUPERVISE, root, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(await asyncio.to_thread(process.stdout.readline))
        grandchild = int((tmp_path / "pids").read_text())
        assert alive(pid)
        assert alive(grandchild)
        process.kill()
    await eventually(lambda: not alive(pid) and not alive(grandchild))
