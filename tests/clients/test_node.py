"""A client generated for Node from the contract alone, through Envoy, over gRPC and gRPC-Web."""

import asyncio
import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.fakes.system import system

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "clients" / "node"
BUF = Path(sys.executable).with_name("buf")


async def output(*command: str | Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return out.decode()


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node 20 or newer")
@pytest.mark.skipif(not (FOLDER / "node_modules").is_dir(), reason="needs its packages: make node")
async def test_generated_client_creates_a_rollout_and_reads_its_events(tmp_path: Path) -> None:
    await output(BUF, "generate", "--template", "tests/clients/node/buf.gen.yaml")
    async with system(tmp_path) as running:
        for kind in ("grpc", "web"):
            told = json.loads(await output("node", FOLDER / "client.js", running.url, kind))
            assert told == {
                "state": "QUEUED",
                "existed": [False, True],
                "input": {"question": "1 + 1", "deep": {"list": [1, "two"]}},
                "events": [["bigint", "reward", 0]],
                "refused": {"code": "NotFound", "details": ["google.rpc.ErrorInfo"]},
            }


def test_lock_file_names_no_host() -> None:
    assert "://" not in (FOLDER / "package-lock.json").read_text()
