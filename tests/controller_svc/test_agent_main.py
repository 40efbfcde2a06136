"""A forked program behaves as one that was started cold: both are run and compared."""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from controller_svc.types import Exit
from tests.fakes.processes import bench, program, script

PROGRAMS = {
    "ends": "print('a')",
    "exit code": "import sys; print('a'); sys.exit(7)",
    "exit code beyond a byte": "import sys; sys.exit(-1)",
    "exit with a message": "import sys; sys.exit('no good')",
    "exit in a thread is the thread's": "import threading, sys; threading.Thread(target=lambda: sys.exit(3)).start()",
    "exception": "def f():\n    raise ValueError('v')\nf()",
    "chained exception": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('r') from e",
    "syntax error": "x = = 1",
    "os._exit": "import os; os._exit(9)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "terminated by default": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "standard streams": """
        import sys
        print(sys.stdin.read() == '', sys.stdout.isatty(), sys.stdout.encoding, sys.stdout.line_buffering)
        print('é', file=sys.stderr)
    """,
    "arguments and names": """
        import sys
        print(sys.argv, __file__, __name__, __doc__, __spec__, sys.path[0], sys.orig_argv[1:], __annotations__)
        import __main__; print(__main__.__file__, vars(__main__) is globals())
    """,
    "an import from beside it": "import neighbour; print(neighbour.name)",
    "a class of the program can be pickled": """
        import pickle
        class C: pass
        print(type(pickle.loads(pickle.dumps(C()))) is C)
    """,
    "future of the runner is not inherited": "def f(x: nonsense = 1): pass",
    "a file without a close": "f = open('f', 'w'); f.write('x'); import atexit; atexit.register(print, 'bye')",
    "destructor": """
        class C:
            def __del__(self): print('gone')
        c = C()
    """,
    "a thread is waited for": """
        import threading, time
        threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()
    """,
    "a daemon thread is not": """
        import threading, time
        def forever():
            while True: time.sleep(0.01)
        threading.Thread(target=forever, daemon=True).start()
    """,
    "temporary folder is removed": """
        import tempfile, os
        d = tempfile.TemporaryDirectory(); print(os.listdir(os.environ['TMPDIR']) != [])
    """,
    "asyncio": "import asyncio\nasync def f(): return 5\nprint(asyncio.run(f()))",
    "pool of processes": """
        from concurrent.futures import ProcessPoolExecutor
        def double(x): return 2 * x
        if __name__ == '__main__':
            with ProcessPoolExecutor(1) as pool: print(list(pool.map(double, [1, 2])))
    """,
    "spawned process": """
        import multiprocessing as m
        def f(q): q.put(6)
        if __name__ == '__main__':
            c = m.get_context('spawn'); q = c.Queue(); p = c.Process(target=f, args=(q,)); p.start()
            print(q.get()); p.join()
    """,
    "subprocess": "import subprocess, sys; print(subprocess.run([sys.executable, '-c', 'print(1)']).returncode)",
    "signal dispositions": """
        import signal
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
            print(number, signal.getsignal(number))
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    """,
    "child of the program": """
        import os
        pid = os.fork()
        if not pid: os._exit(4)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """,
    "garbage collector": "import gc; print(gc.isenabled(), gc.get_threshold())",
    "closed output": "import sys; print('a'); sys.stdout.close()",
}


async def cold(path: str, arguments: tuple[str, ...], folder: Path) -> tuple[int, str, str]:
    work, temporary = folder / "work", folder / "tmp"
    work.mkdir()
    temporary.mkdir()
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(work), "TMPDIR": str(temporary)}
    outputs = (folder / "stdout").open("wb"), (folder / "stderr").open("wb")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        path,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=outputs[0],
        stderr=outputs[1],
        env=environment,
        cwd=work,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    code = await process.wait()
    for output in outputs:
        output.close()
    return code, (folder / "stdout").read_text(), (folder / "stderr").read_text()


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS.keys())
async def test_a_program_cannot_tell_that_it_was_forked(text: str, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    script(tmp_path / "p", "neighbour.py", "name = 'neighbour'")
    path = script(tmp_path / "p", "agent.py", text)
    (tmp_path / "cold").mkdir()
    code, stdout, stderr = await cold(path, ("one", "two words"), tmp_path / "cold")
    async with bench(tmp_path / "w", keep="all") as runner:
        end, output = await runner.run("r", program(path, "one", "two words", preload=("asyncio", "numpy", "tempfile")))
    assert end == Exit(code=code, cpu=end.cpu)
    assert (output.get("stdout", ""), plain(output.get("stderr", ""))) == (stdout, plain(stderr))
    for folder in ("work", "tmp"):
        assert files(tmp_path / "w/attempts/r.1" / folder) == files(tmp_path / "cold" / folder)


def plain(text: str) -> str:
    """Standard error without addresses and process numbers."""
    return re.sub(r"0x[0-9a-f]+|Thread-\d+", "N", text)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_the_environment_is_the_attempt_s_and_nothing_else(tmp_path: Path) -> None:
    path = script(tmp_path, "agent.py", "import os, subprocess; print(dict(os.environ)); subprocess.run(['env'])")
    os.environ["CONTROLLER_SECRET"] = "leaked"
    try:
        async with bench(tmp_path / "w") as runner:
            _, output = await runner.run("r", program(path, preload=("json",), OWN="1"))
    finally:
        del os.environ["CONTROLLER_SECRET"]
    seen, *_ = output["stdout"].splitlines()[-1:]
    assert "OWN" in output["stdout"]
    assert "SECRET" not in output["stdout"] + seen
    python_sees = set(eval(next(line for line in output["stdout"].splitlines() if line.startswith("{"))))
    child_sees = {line.partition("=")[0] for line in output["stdout"].splitlines() if not line.startswith("{")}
    assert python_sees == child_sees
    assert python_sees - {"OWN"} == {
        *("PATH", "HOME", "TMPDIR", "LANG", "OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL"),
        *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "WHIPPLETREE_ROLLOUT", "WHIPPLETREE_ATTEMPT"),
        *("WHIPPLETREE_INPUT", "WHIPPLETREE_TOKEN", "WHIPPLETREE_API", "WHIPPLETREE_WORKDIR"),
    }


async def test_variables_that_a_preload_sets_are_seen_unless_the_attempt_says_otherwise(tmp_path: Path) -> None:
    script(tmp_path, "sets.py", "import os; os.environ.update(ONE='import', TWO='import')")
    path = script(tmp_path, "agent.py", "import os, sets; print(os.environ['ONE'], os.environ['TWO'])")
    async with bench(tmp_path / "w") as runner:
        _, output = await runner.run("r", program(path, preload=("sets",), TWO="attempt"))
    assert output["stdout"] == "import attempt\n"


async def test_forks_of_one_interpreter_draw_different_numbers(tmp_path: Path) -> None:
    path = script(tmp_path, "agent.py", "import random, numpy; print(random.random(), numpy.random.random())")
    async with bench(tmp_path / "w") as runner:
        task = program(path, preload=("random", "numpy", "numpy.random"))
        drawn = [output["stdout"].split() for _, output in [await runner.run(f"r{n}", task) for n in range(3)]]
    assert len({number for pair in drawn for number in pair}) == 6


async def test_a_fork_inherits_no_socket_and_is_a_session_of_its_own(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "agent.py",
        """
        import os
        links = [f'/proc/self/fd/{fd}' for fd in os.listdir('/proc/self/fd') if int(fd) > 2]
        print([os.readlink(link) for link in links if os.path.lexists(link)])
        print(os.getsid(0) == os.getpid() == os.getpgid(0), os.getcwd() == os.environ['HOME'])
        print(open(os.environ['WHIPPLETREE_INPUT']).read())
        """,
    )
    async with bench(tmp_path / "w") as runner:
        end, output = await runner.run("r", program(path, preload=("socket", "json")))
    assert end.code == 0, output
    assert output["stdout"].splitlines() == ["[]", "True True", '{"question": "1 + 1"}']
