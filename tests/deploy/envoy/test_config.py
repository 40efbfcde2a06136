"""What of the configuration cannot be shown by a test of a few seconds, and the pure functions around it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from google.api import annotations_pb2
from google.protobuf import descriptor_pb2, descriptor_pool

from openai_bridge.key_set import AGE
from openai_bridge.server import DIALECTS
from whippletree import contract
from whippletree.cli.envoy import FOLDER, EnvoyValues, arguments, listening_port, render, templates, write
from whippletree.http_door import KEPT
from whippletree.identity.folder import SETTLING
from whippletree.settings import ClientTls

CONFIG = Path("/run/envoy")
VALUES = EnvoyValues(
    listen="127.0.0.1:8080",
    admin="127.0.0.1:0",
    gateway="gateway:7010",
    bridge="[::1]:7011,127.0.0.2:7011",
    bridge_http="[::1]:7012,127.0.0.2:7012",
)


def resources(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(render(templates(), VALUES, CONFIG)[name])["resources"]
    return found


def manager() -> dict[str, Any]:
    return manager_of(VALUES)


def manager_of(values: EnvoyValues) -> dict[str, Any]:
    listener, _ = yaml.safe_load(render(templates(), values, CONFIG)["listeners.yaml"])["resources"]
    found: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def routes() -> list[dict[str, Any]]:
    (config,) = resources("routes.yaml")
    found: list[dict[str, Any]] = config["virtual_hosts"][0]["routes"]
    return found


def clusters() -> list[dict[str, Any]]:
    return [one for one in resources("clusters.yaml") if one["name"] in ("bridge", "bridge-http", "gateway")]


def places(assignment: dict[str, Any]) -> list[tuple[str, int]]:
    found = [one["endpoint"]["address"]["socket_address"] for one in assignment["endpoints"][0]["lb_endpoints"]]
    return [(address["address"], address["port_value"]) for address in found]


def test_the_port_is_filled_in() -> None:
    listener, _ = resources("listeners.yaml")
    assert listener["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 8080}


def test_replicas_given_by_address_are_in_a_file_of_their_own_and_a_name_is_looked_up_by_envoy() -> None:
    bridge, _, gateway = clusters()
    assert (bridge["type"], gateway["type"]) == ("EDS", "STRICT_DNS")
    assert bridge["eds_cluster_config"]["eds_config"]["path_config_source"] == {
        "path": "/run/envoy/endpoints-bridge.yaml",
        "watched_directory": {"path": "/run/envoy"},
    }
    (assignment,) = resources("endpoints-bridge.yaml")
    assert (assignment["cluster_name"], places(assignment)) == ("bridge", [("::1", 7011), ("127.0.0.2", 7011)])
    assert places(gateway["load_assignment"]) == [("gateway", 7010)]


def test_unknown_placeholder_is_an_error() -> None:
    with pytest.raises(KeyError, match="NONE"):
        render({"a.yaml": "${NONE}"}, VALUES, CONFIG)


def test_files_are_replaced_whole_and_only_where_they_say_something_else(tmp_path: Path) -> None:
    write({"a.yaml": "1", "b.yaml": "1"}, tmp_path)
    before = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    write({"a.yaml": "1", "b.yaml": "2"}, tmp_path)
    after = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    assert (tmp_path / "b.yaml").read_text() == "2"
    assert set(after) == {"a.yaml", "b.yaml"}
    assert after["a.yaml"] == before["a.yaml"]
    assert after["b.yaml"] != before["b.yaml"]


def identity(values: EnvoyValues) -> dict[str, Any]:
    (source,) = [f["config_discovery"] for f in manager_of(values)["http_filters"] if f["name"] == "identity"]
    path = Path(source["config_source"]["path_config_source"]["path"])
    (found,) = yaml.safe_load(render(templates(), values, CONFIG)[path.name])["resources"]
    config: dict[str, Any] = found["typed_config"]
    return config


def test_the_door_asks_for_tokens_unless_it_is_told_not_to() -> None:
    rules = identity(VALUES)["rules"]
    assert rules[-1] == {"match": {"prefix": "/"}, "requires": {"provider_name": "gateway"}}
    assert [rule for rule in rules if "requires" not in rule and rule["match"] == {"prefix": "/"}] == []
    assert "rules" not in identity(dataclasses.replace(VALUES, insecure_dev=True))


def test_without_identity_others_than_this_machine_are_not_served() -> None:
    values = dataclasses.replace(VALUES, listen="0.0.0.0:8080", insecure_dev=True)
    with pytest.raises(ValueError, match="only the loopback may be served"):
        render(templates(), values, CONFIG)


def test_keys_are_read_again_before_a_new_one_signs() -> None:
    keys = identity(VALUES)["providers"]["gateway"]["remote_jwks"]
    assert float(keys["cache_duration"].removesuffix("s")) + 30 < SETTLING
    assert AGE + 30 < SETTLING


def test_no_time_limit_cuts_a_silent_generation() -> None:
    # Shown for 17 seconds in test_silence.py; half an hour is too long for a test.
    assert manager()["stream_idle_timeout"] == "0s"
    forwarded = [route["route"] for route in routes() if "route" in route]
    assert len(forwarded) == 6
    for route in forwarded:
        assert (route["timeout"], route["idle_timeout"]) == ("0s", "0s")
        assert route["max_stream_duration"] == {"grpc_timeout_header_max": "0s"}
    for cluster in clusters():
        protocol = cluster["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
        if cluster["name"] != "bridge-http":  # which has no calls on idle connections
            assert protocol["common_http_protocol_options"]["idle_timeout"] == "0s"


def test_envoy_leaves_an_idle_connection_before_the_bridge_does() -> None:
    # A request that is sent while the other side closes is lost, and nobody can say whether it was read.
    (cluster,) = [one for one in clusters() if one["name"] == "bridge-http"]
    protocol = cluster["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
    idle = protocol["common_http_protocol_options"]["idle_timeout"]
    assert float(idle.removesuffix("s")) + 60 < KEPT


def test_idle_connections_outlive_the_pools_of_clients() -> None:
    assert manager()["common_http_protocol_options"]["idle_timeout"] == "3600s"


def test_health_is_asked_every_second_also_without_traffic() -> None:
    # By default the interval without traffic is 60 s: one failed first check would last that long.
    for cluster in clusters():
        (check,) = cluster["health_checks"]
        assert (check["interval"], check["no_traffic_interval"], check["healthy_threshold"]) == ("1s", "1s", 1)


def test_bridges_are_balanced_by_open_requests_and_gateways_by_rollout() -> None:
    # A port of its own for each process: behind SO_REUSEPORT all calls of Envoy's one connection meet one process.
    # Least request takes no notice of a route's hash policy; a gateway needs it, for a retry to meet its generation.
    assert {cluster["name"]: cluster["lb_policy"] for cluster in clusters()} == {
        "bridge": "LEAST_REQUEST",
        "bridge-http": "LEAST_REQUEST",
        "gateway": "RING_HASH",
    }


def test_routes_hash_on_the_rollout_and_never_on_bodies() -> None:
    for route in routes():
        if "route" in route:
            assert route["route"]["hash_policy"] == [{"header": {"header_name": "whippletree-rollout"}}]


def test_lua_stands_before_the_transcoder_and_statistics_after_it() -> None:
    names = [filter_["name"] for filter_ in manager()["http_filters"]]
    assert names.index("envoy.filters.http.lua") < names.index("envoy.filters.http.grpc_json_transcoder")
    assert names.index("envoy.filters.http.grpc_json_transcoder") < names.index("envoy.filters.http.grpc_stats")
    assert names[-1] == "envoy.filters.http.router"


def test_transcoder_has_every_service_that_has_an_http_path_and_no_raw_bodies() -> None:
    (transcoder,) = [f for f in manager()["http_filters"] if f["name"] == "envoy.filters.http.grpc_json_transcoder"]
    pool = descriptor_pool.Default()
    with_paths = {
        name
        for name in contract.public_services()
        if any(m.GetOptions().HasExtension(annotations_pb2.http) for m in pool.FindServiceByName(name).methods)
    }
    assert set(transcoder["typed_config"]["services"]) == with_paths - set(DIALECTS)


def test_descriptor_set_is_the_contract_and_knows_the_details_of_errors() -> None:
    described = descriptor_pb2.FileDescriptorSet.FromString((FOLDER / "whippletree.pb").read_bytes())
    files = {file.name: file for file in described.file}
    assert "google/rpc/error_details.proto" in files  # without it errors have empty bodies
    for name in contract.public_services():
        file = descriptor_pool.Default().FindServiceByName(name).file
        methods = {method.name for service in files[file.name].service for method in service.method}
        assert {method.name for method in file.services_by_name[name.rpartition(".")[2]].methods} <= methods


def test_two_envoys_on_one_machine_do_not_meet() -> None:
    given = arguments(config=CONFIG, admin_file=Path("admin"), workers=2)
    assert "--disable-hot-restart" in given
    assert given[given.index("--concurrency") + 1] == "2"


def test_port_is_found_once_the_listener_is_there() -> None:
    address = {"socket_address": {"address": "127.0.0.1", "port_value": 41234}}
    listening = json.dumps({"listener_statuses": [{"name": "whippletree", "local_address": address}]})
    assert listening_port(listening) == 41234
    assert listening_port("{}") is None
    assert listening_port("") is None


def test_tls_behind_the_door_needs_a_name_to_look_for_in_certificates() -> None:
    nameless = dataclasses.replace(VALUES, upstream_tls=ClientTls(authority=Path("/tls/authority.pem")))
    with pytest.raises(ValueError, match="server_name"):
        render(templates(), nameless, CONFIG)
