"""Envoy's transport sockets, from the TLS settings that every service has. Pure; JSON is YAML.

Envoy reads certificates when it takes a file over that names them: after a renewal write `listeners.yaml` and
`clusters.yaml` anew, with other paths.
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


def downstream(tls: ServerTls) -> str:
    """The socket towards clients."""
    if tls.certificate is None or tls.key is None:
        return json.dumps(RAW)
    common: dict[str, Any] = {
        "tls_certificates": [_pair(tls.certificate, tls.key)],
        "alpn_protocols": ["h2", "http/1.1"],
    }
    if tls.client_authority is not None:
        common["validation_context"] = {"trusted_ca": _file(tls.client_authority)}
    required = {"require_client_certificate": tls.client_authority is not None}
    return _tls("DownstreamTlsContext", {"common_tls_context": common, **required})


def upstream(tls: ClientTls) -> str:
    """The socket towards gateway and bridge; `server_name` must be in their certificates. ValueError where it is empty:
    Envoy would take any certificate of the authority for theirs."""
    if tls.authority is None:
        return json.dumps(RAW)
    if not tls.server_name:
        raise ValueError("server_name is needed where Envoy speaks TLS to gateway and bridge")
    names = [{"san_type": "DNS", "matcher": {"exact": tls.server_name}}]
    validation = {"trusted_ca": _file(tls.authority), "match_typed_subject_alt_names": names}
    common: dict[str, Any] = {"validation_context": validation, "alpn_protocols": ["h2"]}
    if tls.certificate is not None and tls.key is not None:
        common["tls_certificates"] = [_pair(tls.certificate, tls.key)]
    return _tls("UpstreamTlsContext", {"common_tls_context": common, "sni": tls.server_name})


def _tls(kind: str, context: Mapping[str, object]) -> str:
    typed = {"@type": f"{_TYPES}.tls.v3.{kind}", **context}
    return json.dumps({"name": "envoy.transport_sockets.tls", "typed_config": typed})


def _pair(certificate: Path, key: Path) -> dict[str, object]:
    return {"certificate_chain": _file(certificate), "private_key": _file(key)}


def _file(path: Path) -> dict[str, str]:
    return {"filename": str(path)}
