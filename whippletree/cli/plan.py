"""What `up` starts and how: pure functions from folders, ports and a model to the parts."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from whippletree.cli import identity
from whippletree.cli.console import UserError
from whippletree.cli.endpoints import Endpoints
from whippletree.cli.envoy import EnvoyValues, arguments
from whippletree.cli.health import GrpcHealth, HttpHealth
from whippletree.cli.parts import Part
from whippletree.client import Model

HOST = "127.0.0.1"
ENVOY = str(Path(sys.executable).with_name("envoy"))
OTLP = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""The environment's name for the collector of traces."""
ALONE = ("--notice", "0")
"""Arguments of a service without a second replica, to which calls could go while it stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where each part listens, on loopback."""

    envoy: int
    envoy_admin: int
    gateway: int
    bridge: int
    bridge_http: int
    controller: int
    engine: int
    gateway_metrics: int = 0
    bridge_metrics: int = 0
    controller_metrics: int = 0
    """Metrics; 0 = not served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Everything that the command lines depend on; all paths absolute."""

    root: Path
    """The project."""
    run_dir: Path
    model_dir: Path
    model_name: str
    ports: Ports
    engine_url: str = ""
    """An engine that runs already; empty = ours is started."""
    together: bool = False
    """Gateway and bridge are one process, on the gateway's port."""
    insecure_dev: bool = False
    """Nobody is asked for a key or a token."""
    otlp: str = ""
    """The collector of traces; empty = no traces."""

    @property
    def engine(self) -> str:
        """Base URL of the engine."""
        return self.engine_url or f"http://{HOST}:{self.ports.engine}"

    @property
    def api(self) -> str:
        """Base URL of Envoy."""
        return f"http://{HOST}:{self.ports.envoy}"


def gateway(layout: Layout) -> Part:
    """The gateway on its record and its keys, with the bridge where they are one process."""
    port, prefix = layout.ports.gateway, "gateway." if layout.together else ""
    record = (f"--{prefix}store.path", str(layout.run_dir / "record.db"))
    keys = (f"--{prefix}identity.folder", str(identity.keys_folder(layout.run_dir)))
    arguments = record if layout.insecure_dev else (*record, *keys)
    if layout.engine_url:  # whoever starts the system names it, so the gateway may go there
        arguments = (*arguments, f"--{prefix}engine.allowed", json.dumps([urlsplit(layout.engine_url).netloc]))
    if layout.together:
        arguments = (*arguments, "--bridge.http", _at(layout.ports.bridge_http), "--gateway.notice", "0")
        return _service(layout, "together", "whippletree.cli.together", port, arguments, setting="gateway", grace=30.0)
    return _service(layout, "gateway", "gateway_svc", port, (*arguments, *ALONE), grace=30.0)


def bridges(layout: Layout) -> list[Part]:
    """The bridge, where it is a process of its own."""
    if layout.together:
        return []
    http = ("--http", _at(layout.ports.bridge_http))
    arguments = (*http, "--gateway", _at(layout.ports.gateway), *_key(layout), *ALONE)
    return [_service(layout, "bridge", "openai_bridge", layout.ports.bridge, arguments, grace=30.0)]


def controller(layout: Layout) -> Part:
    """The controller with its local runner."""
    more = ("--gateway", _at(layout.ports.gateway), "--api", layout.api, *_key(layout))
    work = ("--local.work_root", str(layout.run_dir / "controller"))
    return _service(layout, "controller", "controller_svc", layout.ports.controller, more + work, grace=20.0)


def envoy_values(layout: Layout) -> EnvoyValues:
    """What its configuration needs to know."""
    return EnvoyValues(
        listen=_at(layout.ports.envoy),
        admin=_at(layout.ports.envoy_admin),
        gateway=_at(layout.ports.gateway),
        bridge=_at(layout.ports.bridge),
        bridge_http=_at(layout.ports.bridge_http),
        access_log=str(layout.run_dir / "logs" / "access.log"),
        insecure_dev=layout.insecure_dev,
        otlp=layout.otlp,
    )


def envoy_config(layout: Layout) -> Path:
    """The folder of its configuration."""
    return layout.run_dir / "envoy"


def envoy(layout: Layout) -> Part:
    """Envoy, on the files of its folder."""
    admin_file = layout.run_dir / "envoy-admin.txt"
    return Part(
        name="envoy",
        command=(ENVOY, *arguments(config=envoy_config(layout), admin_file=admin_file)),
        ready=HttpHealth(address=_at(layout.ports.envoy_admin), path="/ready"),
        address=_at(layout.ports.envoy),
        port_setting=port_setting("envoy"),
    )


def engine(layout: Layout, command: tuple[str, ...], environment: Mapping[str, str]) -> Part:
    """SGLang, given its command line."""
    return Part(
        name="engine",
        command=command,
        environment=environment,
        ready=HttpHealth(address=_at(layout.ports.engine), path="/health"),
        address=_at(layout.ports.engine),
        port_setting=port_setting("engine"),
        patience=600.0,
        grace=15.0,
    )


def port_setting(name: str) -> str:
    """The option that chooses a part's port."""
    return "--port" if name == "envoy" else f"--{name}-port"


def model(layout: Layout) -> Model:
    """The policy as the gateway registers it. UserError where the directory is not a model."""
    config = read_model_config(layout.model_dir)
    return Model(
        model_id=layout.model_name,
        engine=layout.engine,
        tokenizer_path=str(layout.model_dir),
        context_length=int(config["max_position_embeddings"]),
        vocabulary_size=int(config["vocab_size"]),
    )


def read_model_config(model_dir: Path) -> Mapping[str, Any]:
    """config.json of a Hugging Face directory. UserError names `--model`."""
    try:
        config: object = json.loads((model_dir / "config.json").read_text())
    except OSError as error:
        raise UserError(f"--model {model_dir}: no config.json there ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"--model {model_dir}: config.json is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise UserError(f"--model {model_dir}: config.json is no JSON object")
    for key in ("max_position_embeddings", "vocab_size"):
        value = config.get(key)
        if type(value) is not int or value < 1:
            raise UserError(f"--model {model_dir}: config.json has no positive whole number {key!r}")
    if not (model_dir / "tokenizer.json").is_file():
        raise UserError(f"--model {model_dir}: no tokenizer.json there")
    return config


def endpoints(layout: Layout, *, pid: int, pids: Mapping[str, int]) -> Endpoints:
    """What `endpoints.json` says."""
    return Endpoints(
        api=layout.api,
        envoy=_at(layout.ports.envoy),
        gateway=_at(layout.ports.gateway),
        bridge=_at(layout.ports.bridge),
        controller=_at(layout.ports.controller),
        engine=layout.engine,
        model=layout.model_name,
        model_path=str(layout.model_dir),
        record=str(layout.run_dir / "record.db"),
        pid=pid,
        pids=dict(pids),
        metrics=metrics(layout),
    )


def _service(
    layout: Layout,
    name: str,
    module: str,
    port: int,
    arguments: tuple[str, ...],
    *,
    grace: float = 10.0,
    setting: str = "",
) -> Part:
    """`setting` = whose port it takes, where that is not its own name."""
    insecure = ("--insecure_dev", "true") if layout.insecure_dev else ()
    return Part(
        name=name,
        command=(sys.executable, "-m", module, "--listen", _at(port), *insecure, *arguments),
        environment={"PYTHONPATH": str(layout.root), **_telemetry(layout, setting or name)},
        ready=GrpcHealth(address=_at(port)),
        address=_at(port),
        port_setting=port_setting(setting or name),
        grace=grace,
    )


def _telemetry(layout: Layout, service: str) -> dict[str, str]:
    """Settings of a service that say where it is seen, as environment."""
    port: int = getattr(layout.ports, f"{service}_metrics")
    metrics = {f"{service.upper()}_METRICS__LISTEN": _at(port)} if port else {}
    return metrics | ({OTLP: layout.otlp} if layout.otlp else {})


def metrics(layout: Layout) -> dict[str, str]:
    """URL of each part's metrics, for Prometheus."""
    ports = {"gateway": layout.ports.gateway_metrics, "controller": layout.ports.controller_metrics}
    if not layout.together:
        ports["bridge"] = layout.ports.bridge_metrics
    urls = {name: f"http://{_at(port)}/metrics" for name, port in ports.items() if port}
    return urls | {"envoy": f"http://{_at(layout.ports.envoy_admin)}/stats/prometheus"}


def _key(layout: Layout) -> tuple[str, ...]:
    """Where a service finds its key; the key itself is in no argument."""
    file = str(identity.service_file(layout.run_dir))
    return () if layout.insecure_dev else ("--access.api_key_file", file)


def _at(port: int) -> str:
    return f"{HOST}:{port}"
