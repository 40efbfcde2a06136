"""What an attempt is given."""

from pathlib import Path

from controller_svc.local.environment import ServerKey, attempt_environment, attempt_folders, server_key
from tests.fakes.processes import command, program, rollout

ROOT = Path("/w")
TOKEN = "header.claims.signature"


def environment(**own: str) -> dict[str, str]:
    given = rollout("r-1", command("true", **own), mode="eval")
    folders = attempt_folders(ROOT, given, 2)
    return attempt_environment(
        given,
        2,
        folders=folders,
        api="http://h:1/",
        token=TOKEN,
        path="/bin",
        operator={"A": "operator", "B": "operator"},
    )


def test_the_environment_names_the_attempt_and_its_endpoints() -> None:
    assert environment() == {
        "PATH": "/bin",
        "HOME": "/w/attempts/r-1.2/work",
        "TMPDIR": "/w/attempts/r-1.2/tmp",
        "LANG": "C.UTF-8",
        "OPENAI_BASE_URL": "http://h:1/proxy/rollout/r-1/attempt/2/mode/eval/openai/v1",
        "OPENAI_API_KEY": TOKEN,
        "ANTHROPIC_BASE_URL": "http://h:1/proxy/rollout/r-1/attempt/2/mode/eval/anthropic",
        "ANTHROPIC_API_KEY": TOKEN,
        "ANTHROPIC_AUTH_TOKEN": TOKEN,
        "A": "operator",
        "B": "operator",
        "WHIPPLETREE_ROLLOUT": "r-1",
        "WHIPPLETREE_ATTEMPT": "2",
        "WHIPPLETREE_INPUT": "/w/attempts/r-1.2/input.json",
        "WHIPPLETREE_TOKEN": TOKEN,
        "WHIPPLETREE_API": "http://h:1",
        "WHIPPLETREE_WORKDIR": "/w/attempts/r-1.2",
    }


def test_a_rollout_may_change_anything_but_its_identity() -> None:
    changed = environment(A="rollout", OPENAI_API_KEY="k", WHIPPLETREE_ROLLOUT="other", WHIPPLETREE_WORKDIR="/")
    assert (changed["A"], changed["B"], changed["OPENAI_API_KEY"]) == ("rollout", "operator", "k")
    assert (changed["WHIPPLETREE_ROLLOUT"], changed["WHIPPLETREE_WORKDIR"]) == ("r-1", "/w/attempts/r-1.2")


def test_one_warm_interpreter_serves_programs_that_differ_in_what_it_cannot_see() -> None:
    first = server_key(program("/p/a.py", "x", preload=("json",), SEED="1"), {})
    assert first == server_key(program("/p/b.py", "y", preload=("json",), SEED="2"), {})
    assert first == ServerKey(preload=("json",), folder="/p")


def test_a_program_that_asks_for_another_start_gets_another_interpreter() -> None:
    base = server_key(program("/p/a.py", preload=("json",)), {})
    others = [
        server_key(program("/q/a.py", preload=("json",)), {}),
        server_key(program("/p/a.py"), {}),
        server_key(program("/p/a.py", preload=("json",), PYTHONPATH="/x"), {}),
        server_key(program("/p/a.py", preload=("json",)), {"OMP_NUM_THREADS": "1"}),
    ]
    assert len({base, *others}) == 5


def test_commands_share_one_bare_interpreter() -> None:
    assert server_key(command("a", PYTHONPATH="/x"), {}) == ServerKey()
