"""Envoy's transport sockets and secrets, from the TLS settings that every service has. Pure; JSON is YAML.

Sockets name secrets, secrets name PEM files. Envoy watches the folder of each certificate and reads certificate and key
again when something is moved into it: a renewed certificate changes none of Envoy's files.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whippletree.settings import ClientTls, ServerTls

_TYPES = "type.googleapis.com/envoy.extensions.transport_sockets"
RAW = {
    "name": "envoy.transport_sockets.raw_buffer",
    "typed_config": {"@type": f"{_TYPES}.raw_buffer.v3.RawBuffer"},
}
DOOR, CLIENTS, SELF, SERVICES = "door", "clients", "self", "services"
"""Secrets: the door's certificate, whose clients' it takes; Envoy's own towards services, whose it takes of theirs."""


def downstream(tls: ServerTls, config: Path) -> str:
    """The socket towards clients; `config` is the folder of Envoy's files."""
    if tls.certificate is None:
        return json.dumps(RAW)
    common: dict[str, Any] = {
        "tls_certificate_sds_secret_configs": [_secret(DOOR, config)],
        "alpn_protocols": ["h2", "http/1.1"],
    }
    if tls.client_authority is not None:
        common["validation_context_sds_secret_config"] = _secret(CLIENTS, config)
    required = {"require_client_certificate": tls.client_authority is not None}
    return _tls("DownstreamTlsContext", {"common_tls_context": common, **required})


def upstream(tls: ClientTls, config: Path) -> str:
    """The socket towards gateway and bridge; `server_name` must be in their certificates. ValueError where it is empty:
    Envoy would take any certificate of the authority for theirs."""
    if tls.authority is None:
        return json.dumps(RAW)
    if not tls.server_name:
        raise ValueError("server_name is needed where Envoy speaks TLS to gateway and bridge")
    validation = _secret(SERVICES, config)
    common: dict[str, Any] = {"validation_context_sds_secret_config": validation, "alpn_protocols": ["h2"]}
    if tls.certificate is not None:
        common["tls_certificate_sds_secret_configs"] = [_secret(SELF, config)]
    return _tls("UpstreamTlsContext", {"common_tls_context": common, "sni": tls.server_name})


def secrets(tls: ServerTls, upstream_tls: ClientTls) -> dict[str, str]:
    """The files of the secrets that the sockets name, by file name."""
    names = [{"san_type": "DNS", "matcher": {"exact": upstream_tls.server_name}}]
    made = {
        DOOR: _certificate(tls.certificate, tls.key),
        CLIENTS: _validation(tls.client_authority),
        SELF: _certificate(upstream_tls.certificate, upstream_tls.key),
        SERVICES: _validation(upstream_tls.authority, match_typed_subject_alt_names=names),
    }
    kind = {"@type": f"{_TYPES}.tls.v3.Secret"}
    return {
        _file_name(name): json.dumps({"resources": [kind | {"name": name} | secret]}, indent=1) + "\n"
        for name, secret in made.items()
        if secret is not None
    }


def _tls(kind: str, context: Mapping[str, object]) -> str:
    typed = {"@type": f"{_TYPES}.tls.v3.{kind}", **context}
    return json.dumps({"name": "envoy.transport_sockets.tls", "typed_config": typed})


def _file_name(name: str) -> str:
    return f"secret-{name}.yaml"


def _secret(name: str, config: Path) -> dict[str, object]:
    source = {"path": str(config / _file_name(name)), "watched_directory": {"path": str(config)}}
    return {"name": name, "sds_config": {"resource_api_version": "V3", "path_config_source": source}}


def _certificate(certificate: Path | None, key: Path | None) -> dict[str, object] | None:
    if certificate is None or key is None:
        return None
    pair = {"certificate_chain": _pem(certificate), "private_key": _pem(key)}
    return {"tls_certificate": pair | _watched(certificate)}


def _validation(authority: Path | None, **more: object) -> dict[str, object] | None:
    if authority is None:
        return None
    return {"validation_context": {"trusted_ca": _pem(authority)} | _watched(authority) | more}


def _pem(path: Path) -> dict[str, str]:
    return {"filename": str(path)}


def _watched(path: Path) -> dict[str, object]:
    return {"watched_directory": {"path": str(path.parent)}}
