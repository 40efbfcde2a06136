"""The running system as others see it: reflection on every server, REST, and bad input, which leaves no trace."""

import asyncio
import json
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e import processes
from tests.e2e.conftest import Story
from whippletree.cli import identity
from whippletree.cli.endpoints import Endpoints
from whippletree.client import Client

pytestmark = pytest.mark.e2e
GRPCURL = Path(sys.executable).with_name("grpcurl")
SERVED = {
    "gateway": {"RolloutService", "AttemptService", "EventService", "ModelService", "RunService", "InferenceService"},
    "bridge": {"OpenAIBridgeService", "AnthropicBridgeService"},
    "controller": set(),
    "envoy": {"RolloutService", "EventService", "ModelService", "InferenceService", "OpenAIBridgeService"},
}


async def grpcurl(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        GRPCURL, "-plaintext", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


@pytest.mark.parametrize("server", sorted(SERVED))
async def test_every_server_describes_itself(running: Endpoints, server: str) -> None:
    address = str(getattr(running, server))
    code, listed = await grpcurl(address, "list")
    assert code == 0, listed
    assert {f"whippletree.v1.{name}" for name in SERVED[server]} <= set(listed.split())
    assert "grpc.health.v1.Health" in listed
    for name in SERVED[server]:
        code, described = await grpcurl(address, "describe", f"whippletree.v1.{name}")
        assert code == 0, described
        assert "rpc " in described


@pytest.mark.parametrize("server", ["gateway", "envoy"])
async def test_a_call_by_reflection_gives_the_record(running: Endpoints, key: str, server: str) -> None:
    request = json.dumps({"page_size": 1})
    method = "whippletree.v1.RolloutService/ListRollouts"
    address = str(getattr(running, server))
    code, output = await grpcurl("-H", f"authorization: Bearer {key}", "-d", request, address, method)
    assert code == 0, output
    assert len(json.loads(output)["rollouts"]) == 1


MESSAGES = [{"role": "user", "content": "What is 2 plus 3?"}]
Body = dict[str, Any] | bytes
Change = Callable[[str], tuple[str, Body]]


def chat(rollout: str, body: Body, attempt: int = 1) -> tuple[str, Body]:
    return f"/proxy/rollout/{rollout}/attempt/{attempt}/mode/train/openai/v1/chat/completions", body


def event(rollout: str, body: Body) -> tuple[str, Body]:
    return f"/api/rollouts/{rollout}/attempt/1/events", body


BAD: list[tuple[str, int, str, Change]] = [
    ("malformed JSON", 400, "openai", lambda rollout: chat(rollout, b'{"model": "policy", "messages": [')),
    ("not an object", 400, "openai", lambda rollout: chat(rollout, b"[]")),
    ("another rollout", 403, "openai", lambda _: chat("nobody", {"model": "policy", "messages": MESSAGES})),
    ("wrong model", 404, "openai", lambda rollout: chat(rollout, {"model": "gpt-9", "messages": MESSAGES})),
    ("missing messages", 400, "openai", lambda rollout: chat(rollout, {"model": "policy"})),
    ("no model", 400, "openai", lambda rollout: chat(rollout, {"messages": MESSAGES})),
    (
        "too long prompt",
        400,
        "openai",
        lambda rollout: chat(rollout, {"model": "policy", "messages": [{"role": "user", "content": "7 " * 5000}]}),
    ),
    ("another attempt", 403, "openai", lambda r: chat(r, {"model": "policy", "messages": MESSAGES}, attempt=7)),
    ("reward that is not a number", 400, "api", lambda rollout: event(rollout, {"reward": {"value": "NaN"}})),
    ("infinite reward", 400, "api", lambda rollout: event(rollout, {"reward": {"value": "Infinity"}})),
    ("event without a payload", 400, "api", lambda rollout: event(rollout, {})),
    ("event of an unknown rollout", 404, "api", lambda _: event("nobody", {"reward": {"value": 1}})),
    ("malformed event", 400, "api", lambda rollout: event(rollout, b"{")),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A rollout whose first attempt runs, for nobody; who may do what with it."""

    rollout: str
    token: str
    key: str

    def bearer(self, path: str) -> dict[str, str]:
        """The header for a path: harnesses' paths take the attempt's token, the control API the operator's key."""
        return {"authorization": f"Bearer {self.token if path.startswith('/proxy') else self.key}"}


@pytest.fixture
async def begun(running: Endpoints, key: str) -> Begun:
    """A rollout of its own for every test."""
    run_id, rollout_id = f"bad-{uuid.uuid4().hex[:8]}", f"bad-{uuid.uuid4().hex[:8]}"
    bearer = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=running.api, timeout=30, headers=bearer) as http:
        made = await http.post("/api/runs", json={"run_id": run_id, "run": {"policy": "models/policy"}})
        assert made.status_code == 200, made.text
        # a Kubernetes rollout: the local controller leaves it alone
        content = {"run": f"runs/{run_id}", "runner": {"kubernetes_job": {"template": "none"}}}
        made = await http.post("/api/rollouts", json={"requests": [{"rollout_id": rollout_id, "rollout": content}]})
        assert made.status_code == 200, made.text
        made = await http.patch(f"/api/rollouts/{rollout_id}", json={"state": "ROLLOUT_STATE_RUNNING"})
        assert made.status_code == 200, made.text
        issued = await http.post(f"/api/rollouts/{rollout_id}/attempts/1/tokens", json={})
        assert issued.status_code == 200, issued.text
    return Begun(rollout=rollout_id, token=issued.json()["token"], key=key)


@pytest.mark.parametrize(("status", "shape", "change"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
async def test_bad_input_is_a_clear_error_and_leaves_no_trace(
    running: Endpoints, client: Client, begun: Begun, status: int, shape: str, change: Change
) -> None:
    path, body = change(begun.rollout)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with httpx.AsyncClient(base_url=running.api, timeout=30) as http:
        headers = {"content-type": "application/json", **begun.bearer(path)}
        answer = await http.post(path, content=content, headers=headers)
    assert answer.status_code == status, answer.text
    error = answer.json()
    if shape == "openai":
        assert error["error"]["message"]
        assert {"type", "param", "code"} <= error["error"].keys()
    else:
        assert error.get("message") or error["error"]["message"]
    assert [item async for item in client.events(begun.rollout, tokens=False)] == []


async def test_a_good_call_after_them_is_recorded(running: Endpoints, client: Client, begun: Begun) -> None:
    path, body = chat(begun.rollout, {"model": "policy", "messages": MESSAGES, "max_tokens": 4})
    async with httpx.AsyncClient(base_url=running.api, timeout=60) as http:
        answer = await http.post(path, json=body, headers=begun.bearer(path))
    assert answer.status_code == 200, answer.text
    (recorded,) = [item async for item in client.events(begun.rollout, tokens=False)]
    assert recorded.call is not None
    assert answer.json()["id"].removeprefix("chatcmpl-") == recorded.call.call_id


async def test_nothing_secret_is_written_down(running: Endpoints, story: Story, begun: Begun) -> None:
    """Keys and tokens are in no log, no address, no list of processes; keys in no file but their own."""
    run_dir = story.place.run_dir
    async with httpx.AsyncClient(base_url=running.api, timeout=60) as http:
        for key in (begun.token, begun.token[:-4] + "AAAA", begun.key, begun.key[:-4] + "AAAA"):
            for path in (chat(begun.rollout, b"")[0], event(begun.rollout, b"")[0], "/api/rollouts"):
                answer = await http.post(path, content=b"{", headers={"authorization": f"Bearer {key}"})
                assert key not in answer.text
    secrets = [begun.token, begun.key, identity.service_file(run_dir).read_text().strip()]
    secrets += [path.read_text().splitlines()[1] for path in (identity.keys_folder(run_dir) / "signing").glob("*.pem")]
    texts = {str(path): path.read_bytes() for path in readable(run_dir, story.place.folder)}
    assert any(name.endswith("access.log") for name in texts)
    texts |= {f"process {pid}": line.encode() for pid, line in processes.belonging(run_dir, story.place.mark).items()}
    for secret in secrets:
        assert [name for name, text in texts.items() if secret.encode() in text] == []
    # of tokens no part either: the signed part of every one of them begins so
    assert [name for name, text in texts.items() if b"eyJpc3MiOiJ3aGlwcGxldHJlZSI" in text] == []


def readable(run_dir: Path, folder: Path) -> list[Path]:
    """Every file of a run's folders, but for those that hold a key on purpose."""
    own = {identity.operator_file(run_dir), identity.service_file(run_dir)}
    own |= set((identity.keys_folder(run_dir) / "signing").iterdir())
    skipped = (".safetensors", ".distcp", ".pt", ".png")
    return [path for path in folder.rglob("*") if path.is_file() and path not in own and path.suffix not in skipped]
