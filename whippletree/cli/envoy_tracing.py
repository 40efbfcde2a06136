"""Envoy's part of a trace: it begins one for a request, and sends its own spans to the collector. Pure.

In: the collector. Out: what stands for placeholders of listeners.yaml and clusters.yaml: nothing without a collector.
"""

import json
from urllib.parse import urlsplit

CLUSTER = "otlp"
TAGS = {"rollout": "whippletree-rollout", "attempt": "whippletree-attempt", "request": "x-request-id"}
"""Attribute `whippletree.*` of a span: the header that it is read from."""


def tracing(otlp: str, ratio: float) -> str:
    """One line of the connection manager."""
    if not otlp:
        return ""
    provider = {
        "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
        "grpc_service": {"envoy_grpc": {"cluster_name": CLUSTER}, "timeout": "5s"},
        "service_name": "whippletree-envoy",
    }
    config = {
        "provider": {"name": "envoy.tracers.opentelemetry", "typed_config": provider},
        "random_sampling": {"value": 100 * ratio},
        "spawn_upstream_span": True,
        "custom_tags": [{"tag": f"whippletree.{tag}", "request_header": {"name": name}} for tag, name in TAGS.items()],
    }
    return f"tracing: {json.dumps(config)}"


def cluster(otlp: str) -> str:
    """One item of the clusters, the collector. ValueError where it is no plain http URL."""
    if not otlp:
        return ""
    url = urlsplit(otlp)
    if url.scheme != "http" or not url.hostname:
        raise ValueError(f"traces of Envoy go to a collector at http://host:port, not to {otlp!r}")
    address = {"address": url.hostname, "port_value": url.port or 4317}
    http2 = {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    config = {
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": CLUSTER,
        "type": "STRICT_DNS",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2},
        "load_assignment": {
            "cluster_name": CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address": address}}}]}],
        },
    }
    return f"- {json.dumps(config)}"
