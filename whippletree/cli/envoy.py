"""Envoy's configuration from the templates in `deploy/envoy`, and its command line.

In: addresses. Out: a folder of files, which Envoy watches: written anew while it runs, they change routes, limits and
replicas without a restart and without the loss of a call. Port 0 is allowed: Envoy picks a free one, and
`listening_port` finds it in the admin interface's answer to `/listeners?format=json`.
"""

import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from string import Template

from whippletree.cli import envoy_tls, envoy_tracing
from whippletree.settings import ClientTls, ServerTls, is_loopback

FOLDER = Path(__file__).parents[2] / "deploy" / "envoy"
"""Templates, Lua filter and descriptor set."""
BOOTSTRAP = "bootstrap.yaml"
"""The file that Envoy is started with; it leads to the others."""
LISTENER = "whippletree"
DRAINING = 7200
"""Seconds for which connections of a replaced listener may carry on with their present calls: longer than a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyValues:
    """What differs between a laptop and production. Addresses are `host:port`; of gateway and bridge several may be
    given, with commas between them: numeric ones, or one name that stands for all replicas."""

    listen: str
    admin: str
    gateway: str
    bridge: str
    bridge_http: str
    """The bridge's replicas once more, at the addresses of their plain HTTP."""
    access_log: str = "/dev/stdout"
    """One JSON line per request; /dev/null = none."""
    folder: Path = FOLDER
    """Where harness.lua and whippletree.pb lie."""
    insecure_dev: bool = False
    """Nobody is asked for a token; `listen` must be on the loopback then."""
    tls: ServerTls = field(default_factory=ServerTls)
    """TLS towards clients."""
    upstream_tls: ClientTls = field(default_factory=ClientTls)
    """TLS towards gateway and bridge."""
    otlp: str = ""
    """An OpenTelemetry collector, `http://host:port` of its OTLP over gRPC; empty = no traces."""
    trace_ratio: float = 1.0
    """Share of the requests that begin a trace; one whose client traces is traced as the client says."""


def templates(folder: Path = FOLDER) -> dict[str, str]:
    """File name -> text."""
    return {path.name: path.read_text() for path in sorted(folder.glob("*.yaml"))}


def render(texts: Mapping[str, str], values: EnvoyValues, config: Path) -> dict[str, str]:
    """Every file of the configuration that will lie in `config`, by name; those that others refer to come first.

    KeyError where a template has a placeholder that is not known, ValueError where others than this machine would be
    served without identity.
    """
    if values.insecure_dev and not is_loopback(values.listen):
        raise ValueError(f"without keys only the loopback may be served, not {values.listen}")
    filled = {"ACCESS_LOG": values.access_log, "FOLDER": str(values.folder), "CONFIG": str(config)}
    for name, address in (("LISTEN", values.listen), ("ADMIN", values.admin)):
        host, port = _split(address)
        filled[f"{name}_ADDRESS"], filled[f"{name}_PORT"] = host, str(port)
    filled["IDENTITY"] = "identity_off.yaml" if values.insecure_dev else "identity.yaml"
    filled["KEYS_SOCKET"] = f"@whippletree-{sha256(str(config).encode()).hexdigest()[:16]}"  # no file, no port
    filled["DOWNSTREAM_TLS"] = envoy_tls.downstream(values.tls, config)
    filled["UPSTREAM_TLS"] = envoy_tls.upstream(values.upstream_tls, config)
    filled["TRACING"] = envoy_tracing.tracing(values.otlp, values.trace_ratio)
    filled["OTLP_CLUSTER"] = envoy_tracing.cluster(values.otlp)
    files = envoy_tls.secrets(values.tls, values.upstream_tls)
    bridges = (("bridge", values.bridge), ("bridge-http", values.bridge_http))
    for name, addresses in (("gateway", values.gateway), *bridges):
        replicas = [_split(address) for address in addresses.split(",")]
        files[f"endpoints-{name}.yaml"] = _endpoints(name, replicas)
        filled[f"{name.upper().replace('-', '_')}_DISCOVERY"] = _discovery(name, replicas, config)
    return files | {name: Template(text).substitute(filled) for name, text in texts.items()}


def write(files: Mapping[str, str], config: Path) -> None:
    """Put the files in place, each at once and in order; one that says the same already is left alone."""
    config.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = config / name
        if path.is_file() and path.read_text() == text:
            continue
        fresh = config / f".{name}"
        fresh.write_text(text)
        fresh.replace(path)  # Envoy looks when something is moved into the folder


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _assignment(name: str, replicas: Sequence[tuple[str, int]]) -> dict[str, object]:
    endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}} for host, port in replicas
    ]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}


def _endpoints(name: str, replicas: Sequence[tuple[str, int]]) -> str:
    """The file of one cluster's replicas; JSON is YAML."""
    kind = {"@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"}
    return json.dumps({"resources": [kind | _assignment(name, replicas)]}, indent=1) + "\n"


def _discovery(name: str, replicas: Sequence[tuple[str, int]], config: Path) -> str:
    """Two lines of a cluster in clusters.yaml: addresses come from a file, a name is looked up by Envoy."""
    if all(_is_numeric(host) for host, _ in replicas):
        source = {"path": f"{config}/endpoints-{name}.yaml", "watched_directory": {"path": str(config)}}
        eds = {"eds_config": {"resource_api_version": "V3", "path_config_source": source}}
        return f"type: EDS\n    eds_cluster_config: {json.dumps(eds)}"
    return f"type: STRICT_DNS\n    load_assignment: {json.dumps(_assignment(name, replicas))}"


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def arguments(*, config: Path, admin_file: Path, workers: int = 1) -> list[str]:
    """Arguments of the binary, given the folder of its files; it writes the admin interface's `host:port` to
    `admin_file`."""
    return [
        "--config-path",
        str(config / BOOTSTRAP),
        "--admin-address-path",
        str(admin_file),
        "--concurrency",
        str(workers),
        "--drain-time-s",
        str(DRAINING),
        "--drain-strategy",
        "immediate",  # every connection after its present answer, not at random over the time
        "--reject-unknown-dynamic-fields",  # a misspelt limit would be no limit
        "--disable-hot-restart",  # without it two Envoys on one machine meet in shared memory
        "--log-level",
        "warning",
    ]


def listening_port(listeners: str) -> int | None:
    """The port in the admin interface's `/listeners?format=json`; None while it does not listen."""
    for status in json.loads(listeners or "{}").get("listener_statuses", ()):
        if status["name"] == LISTENER:
            return int(status["local_address"]["socket_address"]["port_value"])
    return None
