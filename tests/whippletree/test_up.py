"""`whippletree up` as its users meet it: real parts before a scripted engine, with identity and without."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.fakes.chat_model import write_chat_model
from tests.fakes.engine import FakeEngine
from whippletree.cli import endpoints, identity
from whippletree.cli.endpoints import Endpoints


async def whippletree(*arguments: str) -> tuple[int | None, str]:
    """Run a command to its end: exit code and everything that it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "WHIPPLETREE_API_KEY"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "whippletree.cli.main", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


@asynccontextmanager
async def up(folder: Path, *more: str) -> AsyncIterator[Endpoints]:
    """A system in `folder/run`, once everything is ready; it must end well."""
    run_dir, model = folder / "run", write_chat_model(folder / "model")
    config = model / "config.json"
    if not config.exists():
        config.write_text('{"max_position_embeddings": 2048, "vocab_size": 1024}')
    async with FakeEngine() as engine:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "whippletree.cli.main", "up", "--model", str(model), "--run-dir", str(run_dir)),
            *("--port", "0", "--engine", engine.url, *more),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                if line.startswith(b"API "):
                    break
            found = endpoints.read(run_dir)
            assert found is not None
            yield found
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await process.communicate()
        assert process.returncode == 0


@pytest.mark.parametrize("how", ["--separate", "--together"])
async def test_a_system_asks_for_its_key_which_its_commands_find(tmp_path: Path, how: str) -> None:
    run_dir = tmp_path / "run"
    async with up(tmp_path, how) as found, httpx.AsyncClient(base_url=found.api, timeout=60) as http:
        file = identity.operator_file(run_dir)
        key = file.read_text().strip()
        assert file.stat().st_mode & 0o777 == 0o600
        assert key not in endpoints.path(run_dir).read_text()
        assert (await http.get("/api/runs")).status_code == 401
        assert (await http.get("/api/runs", headers={"authorization": f"Bearer {key}"})).status_code == 200
        code, output = await whippletree("rollouts", "list", "--run-dir", str(run_dir))
        assert code == 0, output
        assert "0 rollouts" in output
        code, output = await whippletree("keys", "create", "guest", "--run-dir", str(run_dir))
        guest = output.strip()
        await until(http, guest, 200)
        code, output = await whippletree("keys", "list", "--run-dir", str(run_dir))
        assert "guest" in output
        assert guest not in output
        assert (await whippletree("keys", "revoke", guest.split("_")[1], "--run-dir", str(run_dir)))[0] == 0
        await until(http, guest, 401)
    code, output = await whippletree("rollouts", "list", "--run-dir", str(run_dir))  # of a stopped system
    assert code == 0, output


async def test_without_identity_it_asks_for_nothing(tmp_path: Path) -> None:
    async with up(tmp_path, "--insecure-dev") as found, httpx.AsyncClient(base_url=found.api, timeout=60) as http:
        assert not identity.operator_file(tmp_path / "run").exists()
        assert (await http.get("/api/runs")).status_code == 200
        code, output = await whippletree("rollouts", "list", "--run-dir", str(tmp_path / "run"))
        assert code == 0, output


async def test_the_only_signing_key_is_not_revoked(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    assert (await whippletree("keys", "create", "me", "--keys", str(keys)))[0] == 0
    (only,) = (keys / "signing").glob("*.pem")
    code, output = await whippletree("keys", "revoke", only.stem, "--keys", str(keys))
    assert code != 0
    assert "whippletree keys rotate" in output.replace("\n", " ")
    assert (await whippletree("keys", "rotate", "--keys", str(keys)))[0] == 0
    assert (await whippletree("keys", "revoke", only.stem, "--keys", str(keys)))[0] == 0
    assert not only.exists()


async def until(http: httpx.AsyncClient, key: str, status: int) -> None:
    """Ask until a key is answered so: the gateway looks at its folder every second."""
    while (await http.get("/api/runs", headers={"authorization": f"Bearer {key}"})).status_code != status:
        await asyncio.sleep(0.05)
