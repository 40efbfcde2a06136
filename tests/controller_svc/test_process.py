"""Attempts as real processes: groups, orphans, losses."""

import os
import signal
from pathlib import Path

import pytest

from controller_svc.local.leftovers import kill_marked, marked
from controller_svc.local.process import WorkRootTakenError, read_tail
from controller_svc.types import Exit, RolloutId
from tests.fakes.processes import alive, bench, command, program, rollout, script, until, until_nobody

R = RolloutId("r")
FAMILY = "sleep 1000 & setsid sleep 1000 & (setsid -f sleep 1000) ; echo up; "


async def test_a_command_runs_in_its_folder_with_its_input(tmp_path: Path) -> None:
    async with bench(tmp_path / "w") as runner:
        shell = 'pwd; cat "$WHIPPLETREE_INPUT"; echo oops >&2; exit 3'
        end, output = await runner.run("r", command("sh", "-c", shell))
    assert end.code == 3
    assert output == {"stdout": f'{tmp_path}/w/attempts/r.1/work\n{{"question": "1 + 1"}}', "stderr": "oops\n"}


@pytest.mark.parametrize(
    ("arguments", "code"), [(("no-such-program",), 127), (("/etc",), 126)], ids=["missing", "not executable"]
)
async def test_a_command_that_cannot_start_says_so(arguments: tuple[str, ...], code: int, tmp_path: Path) -> None:
    async with bench(tmp_path / "w") as runner:
        end, output = await runner.run("r", command(*arguments))
    assert end.code == code
    assert output["stderr"].startswith(f"{arguments[0]}: ")


async def test_whatever_an_agent_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    async with bench(tmp_path / "w") as runner:
        assert await runner.runner.launch(rollout("stays", command("sleep", "1000")), 1, "") is None
        end, _ = await runner.run("r", command("sh", "-c", FAMILY))
        assert end.code == 0
        await until(lambda: not list(marked(tmp_path / "w/attempts/r.1")), "the end of what was left behind")
        assert len(list(marked(tmp_path / "w/attempts/stays.1"))) == 1


NESTED = "setsid sh -c 'setsid sh -c \"echo \\$\\$ > pid; exec sleep 1000\" & exec sleep 1000' &"
"""A child in a session of its own, which has one in another."""
LATE = (
    "env -i setsid sh -c 'echo $$ > pid; sleep 0.5; exec env WHIPPLETREE_WORKDIR=\"$0\" sleep 1000'"
    ' "$WHIPPLETREE_WORKDIR" &'
)
"""A child that does not say whose it is until the agent has ended, as one that becomes another program just then."""


@pytest.mark.parametrize("left", [NESTED, LATE], ids=["nested", "late"])
async def test_what_is_left_behind_ends_also_where_it_is_not_known_at_once(left: str, tmp_path: Path) -> None:
    pid = tmp_path / "w/attempts/r.1/work/pid"
    async with bench(tmp_path / "w") as runner:
        assert await runner.runner.launch(rollout("stays", command("sleep", "1000")), 1, "") is None
        await runner.run("r", command("sh", "-c", f"{left} until [ -s pid ]; do sleep 0.01; done"))
        await until(lambda: not alive(int(pid.read_text())), "the end of what was left behind")
        assert len(list(marked(tmp_path / "w/attempts/stays.1"))) == 1


async def test_a_signal_reaches_the_whole_group(tmp_path: Path) -> None:
    async with bench(tmp_path / "w") as runner:
        task = command("sh", "-c", "trap 'echo asked; exit 5' TERM; sleep 1000 & echo up; wait")
        assert await runner.runner.launch(rollout("r", task), 1, "") is None
        await until(lambda: "up" in runner.output("r"), "the start")
        runner.runner.signal(R, 1, signal.SIGTERM)
        assert (await runner.exit("r")).code == 5
        assert runner.output("r") == "up\nasked\n"


async def test_a_process_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    async with bench(tmp_path / "w") as runner:
        task = command("sh", "-c", "trap '' TERM; echo up; while :; do sleep 1000; done")
        assert await runner.runner.launch(rollout("r", task), 1, "") is None
        await until(lambda: "up" in runner.output("r"), "the start")
        runner.runner.signal(R, 1, signal.SIGKILL)
        assert (await runner.exit("r")).code == -signal.SIGKILL


async def test_the_death_of_a_fork_server_loses_its_attempts_and_leaves_nobody(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "agent.py",
        """
        import multiprocessing, os, subprocess, time
        if __name__ == '__main__':
            multiprocessing.get_context('fork').Process(target=time.sleep, args=(1000,)).start()
            subprocess.Popen(['setsid', 'sleep', '1000'])
            print(os.getppid(), flush=True)
            time.sleep(1000)
        """,
    )
    async with bench(tmp_path / "w") as runner:
        task = program(path, preload=("multiprocessing", "subprocess"))
        assert await runner.runner.launch(rollout("r", task), 1, "") is None
        await until(lambda: runner.output("r").strip() != "", "the start")
        os.kill(int(runner.output("r")), signal.SIGKILL)
        assert (await runner.exit("r")).lost == "fork server died"
        await until_nobody(tmp_path / "w")
        end, _ = await runner.run("again", program(script(tmp_path, "b.py", ""), preload=task.preload))
        assert end.code == 0


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("no_such_module", "preload of no_such_module: ModuleNotFoundError: No module named 'no_such_module'"),
        ("exits", "preload of exits: SystemExit: 4"),
        ("threads", "preload started a thread, which a fork would not have: worker"),
        ("sockets", "preload left a socket open, which all forks would share"),
    ],
)
async def test_modules_that_must_not_be_preloaded_are_refused(module: str, reason: str, tmp_path: Path) -> None:
    script(tmp_path, "exits.py", "raise SystemExit(4)")
    script(tmp_path, "sockets.py", "import socket; s = socket.socket()")
    script(
        tmp_path,
        "threads.py",
        "import threading, time; threading.Thread(target=time.sleep, args=(99,), daemon=True, name='worker').start()",
    )
    async with bench(tmp_path / "w") as runner:
        task = program(script(tmp_path, "agent.py", ""), preload=(module,))
        ends = [await runner.runner.launch(rollout(name, task), 1, "") for name in ("a", "b")]
    assert ends == [Exit(refused=reason)] * 2


async def test_an_interpreter_that_dies_while_it_imports_is_a_loss(tmp_path: Path) -> None:
    script(tmp_path, "dies.py", "import os; os.kill(os.getpid(), 9)")
    async with bench(tmp_path / "w") as runner:
        task = program(script(tmp_path, "agent.py", ""), preload=("dies",))
        end = await runner.runner.launch(rollout("r", task), 1, "")
    assert end == Exit(lost="fork server died while it imported dies")


async def test_an_import_that_never_ends_is_a_loss(tmp_path: Path) -> None:
    script(tmp_path, "hangs.py", "import time; time.sleep(1000)")
    async with bench(tmp_path / "w", preload_timeout=0.5) as runner:
        task = program(script(tmp_path, "agent.py", ""), preload=("hangs",))
        end = await runner.runner.launch(rollout("r", task), 1, "")
    assert end == Exit(lost="fork server was not ready within 0.5 s")


async def test_idle_interpreters_give_way_and_busy_ones_stay(tmp_path: Path) -> None:
    path = script(tmp_path, "agent.py", "import time, sys; print('up', flush=True); time.sleep(float(sys.argv[1]))")
    async with bench(tmp_path / "w", fork_servers=2) as runner:
        busy = program(path, "1000", preload=("json",))
        assert await runner.runner.launch(rollout("busy", busy), 1, "") is None
        for number in range(3):
            end, _ = await runner.run(f"r{number}", program(path, "0", preload=("json",), PYTHONSTART=str(number)))
            assert end.code == 0
        assert len(list(marked(tmp_path / "w"))) == 3  # the busy one, its fork and the last one
        assert "busy" not in runner.exits


async def test_two_controllers_cannot_share_a_work_root(tmp_path: Path) -> None:
    async with bench(tmp_path / "w"):
        with pytest.raises(WorkRootTakenError, match="another controller works in"):
            async with bench(tmp_path / "w"):
                pass


async def test_a_worker_keeps_its_name(tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        async with bench(tmp_path / "w") as runner:
            runner.runner._lock, held = -1, runner.runner._lock
            os.close(held)
            names.append(runner.runner.open())
    assert names[0] == names[1] != ""


async def test_leftovers_are_recognised_by_their_folder_alone(tmp_path: Path) -> None:
    async with bench(tmp_path / "w") as ours, bench(tmp_path / "w2") as theirs:
        for runner, root in ((ours, tmp_path / "w/attempts"), (theirs, tmp_path / "w2/attempts")):
            assert await runner.runner.launch(rollout("r", command("sleep", "1000")), 1, "") is None
            await until(lambda root=root: len(list(marked(root))) == 1, "the program itself")  # type: ignore[misc]
        assert kill_marked(tmp_path / "w" / "attempts") == 1
        assert (await ours.exit("r")).code == -signal.SIGKILL
        assert all(alive(pid) for pid in marked(tmp_path / "w2"))
        assert "r" not in theirs.exits


def test_a_tail_starts_at_a_line(tmp_path: Path) -> None:
    path = tmp_path / "f"
    assert read_tail(path, 10) == ""
    path.write_bytes(b"first line\nsecond\nthird\n")
    assert read_tail(path, 100) == "first line\nsecond\nthird\n"
    assert read_tail(path, 15) == "second\nthird\n"
    path.write_bytes(b"\xff" + b"x" * 50)
    assert read_tail(path, 8) == "x" * 8
    assert read_tail(path, 100).startswith("\ufffdx")
