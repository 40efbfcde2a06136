"""Command lines of the parts, and what the model directory must have."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from whippletree.cli import plan
from whippletree.cli.console import UserError


def layout(folder: Path, engine_url: str = "", *, together: bool = False, insecure_dev: bool = False) -> plan.Layout:
    return plan.Layout(
        root=folder,
        run_dir=folder / "run",
        model_dir=folder / "model",
        model_name="policy",
        ports=plan.Ports(envoy=1, envoy_admin=2, gateway=3, bridge=4, bridge_http=41, controller=5, engine=6),
        engine_url=engine_url,
        together=together,
        insecure_dev=insecure_dev,
    )


def write_model(folder: Path, config: object) -> None:
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(config))
    (folder / "model/tokenizer.json").write_text("{}")


def test_services_find_the_gateway_and_keep_their_state_in_the_run_folder(tmp_path: Path) -> None:
    made = layout(tmp_path)
    parts = [plan.gateway(made), *plan.bridges(made), plan.controller(made)]
    lines = [" ".join(part.command[1:]) for part in parts]
    run = tmp_path / "run"
    record = f"--store.path {run}/record.db --identity.folder {run}/keys"
    key = f"--access.api_key_file {run}/service.key"
    assert lines[0] == f"-m gateway_svc --listen 127.0.0.1:3 {record} --notice 0"
    assert (
        lines[1] == f"-m openai_bridge --listen 127.0.0.1:4 --http 127.0.0.1:41 --gateway 127.0.0.1:3 {key} --notice 0"
    )
    assert lines[2].startswith("-m controller_svc --listen 127.0.0.1:5 --gateway 127.0.0.1:3 --api http://127.0.0.1:1")
    assert key in lines[2]
    assert [part.port for part in parts] == [3, 4, 5]


def test_without_identity_every_service_is_told_so(tmp_path: Path) -> None:
    made = layout(tmp_path, insecure_dev=True)
    for part in (plan.gateway(made), *plan.bridges(made), plan.controller(made)):
        assert "--insecure_dev true" in " ".join(part.command)
        assert "key" not in " ".join(part.command)


def test_one_process_may_be_gateway_and_bridge(tmp_path: Path) -> None:
    made = layout(tmp_path, together=True)
    part = plan.gateway(made)
    line = (
        f"-m whippletree.cli.together --listen 127.0.0.1:3 --gateway.store.path {tmp_path}/run/record.db "
        f"--gateway.identity.folder {tmp_path}/run/keys --bridge.http 127.0.0.1:41 --gateway.notice 0"
    )
    assert (part.name, " ".join(part.command[1:]), part.port_setting) == ("together", line, "--gateway-port")
    assert plan.bridges(made) == []


def test_an_engine_that_runs_elsewhere_is_allowed_to_the_gateway(tmp_path: Path) -> None:
    command = plan.gateway(layout(tmp_path, "http://elsewhere.test:30000")).command
    assert command[command.index("--engine.allowed") + 1] == '["elsewhere.test:30000"]'
    assert "--engine.allowed" not in plan.gateway(layout(tmp_path)).command


def test_the_model_is_registered_with_what_its_config_says(tmp_path: Path) -> None:
    write_model(tmp_path, {"max_position_embeddings": 512, "vocab_size": 704})
    model = plan.model(layout(tmp_path))
    assert (model.context_length, model.vocabulary_size, model.engine) == (512, 704, "http://127.0.0.1:6")
    assert plan.model(layout(tmp_path, "http://elsewhere:1")).engine == "http://elsewhere:1"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param({"vocab_size": 1}, "no positive whole number 'max_position_embeddings'", id="no context length"),
        pytest.param(
            {"max_position_embeddings": 1, "vocab_size": "1"}, "no positive whole number 'vocab_size'", id="no number"
        ),
        pytest.param({"vocab_size": True, "max_position_embeddings": 1}, "no positive whole number", id="truth"),
        pytest.param({"vocab_size": -5, "max_position_embeddings": 1}, "no positive whole number", id="negative"),
        pytest.param([], "no JSON object", id="list"),
    ],
)
def test_a_config_that_lacks_something_is_named(tmp_path: Path, config: object, message: str) -> None:
    write_model(tmp_path, config)
    with pytest.raises(UserError, match=message):
        plan.read_model_config(tmp_path / "model")


def test_a_folder_without_a_model_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--model .*: no config.json there"):
        plan.read_model_config(tmp_path)


def test_endpoints_name_every_part(tmp_path: Path) -> None:
    found = plan.endpoints(layout(tmp_path), pid=7, pids={"gateway": 8})
    assert (found.api, found.gateway, found.pids) == ("http://127.0.0.1:1", "127.0.0.1:3", {"gateway": 8})


def test_what_is_seen_of_a_system_is_in_its_endpoints_and_every_part_is_told(tmp_path: Path) -> None:
    ports = plan.Ports(
        envoy=1,
        envoy_admin=2,
        gateway=3,
        bridge=4,
        bridge_http=41,
        controller=5,
        engine=6,
        gateway_metrics=7,
        bridge_metrics=8,
        controller_metrics=9,
    )
    made = replace(layout(tmp_path), ports=ports, otlp="http://127.0.0.1:4317")
    services = {part.name: part for part in (plan.gateway(made), *plan.bridges(made), plan.controller(made))}
    for name, port in (("gateway", 7), ("bridge", 8), ("controller", 9)):
        environment = services[name].environment
        assert environment[f"{name.upper()}_METRICS__LISTEN"] == f"127.0.0.1:{port}"
        assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://127.0.0.1:4317"
    assert plan.envoy_values(made).otlp == "http://127.0.0.1:4317"
    assert plan.endpoints(made, pid=1, pids={}).metrics == {
        "gateway": "http://127.0.0.1:7/metrics",
        "bridge": "http://127.0.0.1:8/metrics",
        "controller": "http://127.0.0.1:9/metrics",
        "envoy": "http://127.0.0.1:2/stats/prometheus",
    }
    joint = replace(made, together=True)
    assert plan.gateway(joint).environment["GATEWAY_METRICS__LISTEN"] == "127.0.0.1:7"
    assert "bridge" not in plan.endpoints(joint, pid=1, pids={}).metrics
