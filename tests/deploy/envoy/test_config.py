"""What of the configuration cannot be shown by a test of a few seconds, and the pure functions around it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from google.api import annotations_pb2
from google.protobuf import descriptor_pb2, descriptor_pool

from whippletree import contract
from whippletree.cli.envoy import FOLDER, EnvoyValues, arguments, listening_port, render

TEMPLATE = (FOLDER / "envoy.yaml").read_text()
VALUES = EnvoyValues(listen="127.0.0.1:8080", admin="127.0.0.1:0", gateway="gateway:7010", bridge="[::1]:7011")


def config() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(render(TEMPLATE, VALUES))
    return parsed


def manager() -> dict[str, Any]:
    listener = config()["static_resources"]["listeners"][0]
    found: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def routes() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = manager()["route_config"]["virtual_hosts"][0]["routes"]
    return found


def clusters() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = config()["static_resources"]["clusters"]
    return found


def test_addresses_are_filled_in() -> None:
    listener = config()["static_resources"]["listeners"][0]
    assert listener["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 8080}
    places = {
        cluster["name"]: cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
        for cluster in clusters()
    }
    assert places["gateway"]["socket_address"] == {"address": "gateway", "port_value": 7010}
    assert places["bridge"]["socket_address"] == {"address": "::1", "port_value": 7011}


def test_a_service_may_have_several_replicas() -> None:
    values = EnvoyValues(listen="127.0.0.1:1", admin="127.0.0.1:0", gateway="one:1,two:2", bridge="b:3")
    for cluster in yaml.safe_load(render(TEMPLATE, values))["static_resources"]["clusters"]:
        found = [one["endpoint"]["address"] for one in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]]
        ports = [address["socket_address"]["port_value"] for address in found]
        assert ports == {"gateway": [1, 2], "bridge": [3]}[cluster["name"]]


def test_unknown_placeholder_is_an_error() -> None:
    with pytest.raises(KeyError, match="NONE"):
        render("${NONE}", VALUES)


def test_no_time_limit_cuts_a_silent_generation() -> None:
    # Shown for 17 seconds in test_silence.py; half an hour is too long for a test.
    assert manager()["stream_idle_timeout"] == "0s"
    assert manager()["request_timeout"] == "0s"
    forwarded = [route["route"] for route in routes() if "route" in route]
    assert len(forwarded) == 4
    for route in forwarded:
        assert (route["timeout"], route["idle_timeout"]) == ("0s", "0s")
        assert route["max_stream_duration"] == {"grpc_timeout_header_max": "0s"}
    for cluster in clusters():
        protocol = cluster["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
        assert protocol["common_http_protocol_options"]["idle_timeout"] == "0s"


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


def test_transcoder_has_every_service_that_has_an_http_path() -> None:
    (transcoder,) = [f for f in manager()["http_filters"] if f["name"] == "envoy.filters.http.grpc_json_transcoder"]
    pool = descriptor_pool.Default()
    with_paths = {
        name
        for name in contract.public_services()
        if any(m.GetOptions().HasExtension(annotations_pb2.http) for m in pool.FindServiceByName(name).methods)
    }
    assert set(transcoder["typed_config"]["services"]) == with_paths


def test_descriptor_set_is_the_contract_and_knows_the_details_of_errors() -> None:
    described = descriptor_pb2.FileDescriptorSet.FromString((FOLDER / "whippletree.pb").read_bytes())
    files = {file.name: file for file in described.file}
    assert "google/rpc/error_details.proto" in files  # without it errors have empty bodies
    for name in contract.public_services():
        file = descriptor_pool.Default().FindServiceByName(name).file
        methods = {method.name for service in files[file.name].service for method in service.method}
        assert {method.name for method in file.services_by_name[name.rpartition(".")[2]].methods} <= methods


def test_two_envoys_on_one_machine_do_not_meet() -> None:
    given = arguments(config=Path("envoy.yaml"), admin_file=Path("admin"), workers=2)
    assert "--disable-hot-restart" in given
    assert given[given.index("--concurrency") + 1] == "2"


def test_port_is_found_once_the_listener_is_there() -> None:
    address = {"socket_address": {"address": "127.0.0.1", "port_value": 41234}}
    listening = json.dumps({"listener_statuses": [{"name": "whippletree", "local_address": address}]})
    assert listening_port(listening) == 41234
    assert listening_port("{}") is None
    assert listening_port("") is None
