"""The process that is gateway and bridge: whose settings are whose, and what it serves."""

from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.fakes.stack import service
from whippletree.channel import connect
from whippletree.cli.together import settings_of


def test_arguments_go_to_the_service_that_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_DELIVERY__QUEUE", "7")
    both = ["--listen", "127.0.0.1:9", "--grace", "2", "--insecure_dev=true"]
    made = settings_of(["--gateway.store.path", "a b", "--bridge.grace=3", *both])
    assert (str(made.gateway.store.path), made.gateway.grace) == ("a b", 2.0)
    assert (made.bridge.delivery.queue, made.bridge.grace) == (7, 2.0)
    assert made.gateway.listen == made.bridge.listen == "127.0.0.1:9"


@pytest.mark.parametrize("wrong", ["--gateway.nothing=1", "--store.path=x", "--bridge.listening=1"])
def test_an_argument_that_fits_no_service_ends_the_start(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        settings_of(["--insecure_dev", "true", wrong])
    assert wrong.rpartition(".")[2].partition("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize("half", ["BRIDGE", "GATEWAY"])
def test_one_half_alone_cannot_do_without_keys(
    half: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"{half}_INSECURE_DEV", "true")
    with pytest.raises(SystemExit):
        settings_of(["--gateway.identity.folder=keys", "--gateway.store.path=x"])
    assert "insecure_dev" in capsys.readouterr().err


async def test_one_port_serves_the_services_of_both_and_ends_at_a_signal(tmp_path: Path) -> None:
    arguments = ("--gateway.store.path", str(tmp_path / "record.db"))
    async with service("whippletree.cli.together", *arguments) as running:
        async with connect(running.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            for name in ("", "whippletree.v1.OpenAIBridgeService", "whippletree.v1.InferenceService"):
                found = await health.Check(health_pb2.HealthCheckRequest(service=name))
                assert found.status == health_pb2.HealthCheckResponse.SERVING
        assert await running.end() == 0
