"""Envoy's configuration from its one template, and its command line. Pure.

In: addresses. Out: the YAML of `deploy/envoy/envoy.yaml` filled in, arguments for the binary. Port 0 is allowed: Envoy
picks a free one, and `listening_port` finds it in the admin interface's answer to `/listeners?format=json`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from string import Template

FOLDER = Path(__file__).parents[2] / "deploy" / "envoy"
"""Template, Lua filter and descriptor set."""
LISTENER = "whippletree"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyValues:
    """What differs between a laptop and production. Addresses are `host:port`; of gateway and bridge several may be
    given, with commas between them."""

    listen: str
    admin: str
    gateway: str
    bridge: str
    access_log: str = "/dev/stdout"
    """One JSON line per request; /dev/null = none."""
    folder: Path = FOLDER
    """Where openai_errors.lua and whippletree.pb lie."""


def render(template: str, values: EnvoyValues) -> str:
    """The configuration. KeyError where the template has a placeholder that is not known."""
    filled: dict[str, str] = {"ACCESS_LOG": values.access_log, "FOLDER": str(values.folder)}
    for name, address in (("LISTEN", values.listen), ("ADMIN", values.admin)):
        host, port = _split(address)
        filled[f"{name}_ADDRESS"], filled[f"{name}_PORT"] = host, str(port)
    for name, addresses in (("GATEWAY", values.gateway), ("BRIDGE", values.bridge)):
        filled[f"{name}_ENDPOINTS"] = ", ".join(_endpoint(address) for address in addresses.split(","))
    return Template(template).substitute(filled)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _endpoint(address: str) -> str:
    """One endpoint of a cluster, as YAML."""
    host, port = _split(address)
    return json.dumps({"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}})


def arguments(*, config: Path, admin_file: Path, workers: int = 1) -> list[str]:
    """Arguments of the binary; it writes the admin interface's `host:port` to `admin_file`."""
    return [
        "--config-path",
        str(config),
        "--admin-address-path",
        str(admin_file),
        "--concurrency",
        str(workers),
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
