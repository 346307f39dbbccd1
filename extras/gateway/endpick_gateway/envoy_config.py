"""Envoy's bootstrap: one listener, routed by the picker to the endpoints of an EDS file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from endpick.serve.eds import MODEL_SERVERS

PICKER = "endpick"  # the cluster of the picker, and the name of the ext_proc filter
MAX_BODY_BYTES = 32 << 20  # kept for a retry; as the default of --max-request-body

_DESTINATION = "x-gateway-destination-endpoint"
_METADATA = "envoy.lb"
_NO_LIMIT = 40_000
_NO_TIMEOUT = "0s"
_MAX_CONNECTIONS = 50_000
# Below the 5 s after which uvicorn, vLLM's server, closes an idle connection.
_SERVER_IDLE_TIMEOUT = "4s"
_RETRIES = 2


@dataclass(frozen=True, slots=True)
class EnvoySettings:
    """The parts of Envoy's configuration that differ between gateways."""

    picker_port: int  # of ext_proc on the loopback interface, in plain text
    eds_file: Path  # see `EdsFile`; exists when Envoy starts
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free port
    certificate: tuple[Path, Path] | None = None  # PEM certificate and key; None: plain text
    logs_access: bool = False  # one JSON object per request, on standard output
    logs_scores: bool = False  # with the score of each candidate


def bootstrap(settings: EnvoySettings) -> dict[str, object]:
    """Return Envoy's configuration, which `--config-path` reads as JSON."""
    return {
        "node": {"id": PICKER, "cluster": PICKER},  # EDS requires them
        "admin": {"address": _address("127.0.0.1", 0)},
        "overload_manager": _connection_limit(),
        "static_resources": {
            "listeners": [_listener(settings)],
            "clusters": [_picker_cluster(settings.picker_port), _model_servers(settings.eds_file)],
        },
    }


def adapted(own: Mapping[str, Any], settings: EnvoySettings) -> dict[str, object]:
    """Return the operator's configuration with the addresses of this run; raises ValueError."""
    clusters = {cluster.get("name"): cluster for cluster in own.get("static_resources", {}).get("clusters", [])}
    ours = {
        PICKER: {"load_assignment": _picker_cluster(settings.picker_port)["load_assignment"]},
        MODEL_SERVERS: {"eds_cluster_config": _model_servers(settings.eds_file)["eds_cluster_config"]},
    }
    missing = ours.keys() - clusters.keys()
    if missing:
        raise ValueError(f"it has no cluster named {' and '.join(sorted(missing))} under static_resources")
    changed = [{**cluster, **ours.get(name, {})} for name, cluster in clusters.items()]
    return {**own, "admin": {"address": _address("127.0.0.1", 0)}, "static_resources": {**own["static_resources"], "clusters": changed}}


def _address(host: str, port: int) -> dict[str, object]:
    address: dict[str, object] = {"address": host, "port_value": port}
    if host == "::":
        address["ipv4_compat"] = True
    return {"socket_address": address}


def _type(name: str) -> str:
    return f"type.googleapis.com/envoy.extensions.{name}"


def _extension(name: str, type_name: str, **settings: object) -> dict[str, object]:
    return {"name": name, "typed_config": {"@type": _type(type_name), **settings}}


def _connection_limit() -> dict[str, object]:
    monitor = _extension(
        "envoy.resource_monitors.global_downstream_max_connections",
        "resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        max_active_downstream_connections=_MAX_CONNECTIONS,
    )
    return {"resource_monitors": [monitor]}


def _listener(settings: EnvoySettings) -> dict[str, object]:
    manager = _extension(
        "http",
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="gateway",
        use_remote_address=True,
        preserve_external_request_id=True,
        always_set_request_id_in_response=True,
        stream_idle_timeout=_NO_TIMEOUT,
        http2_protocol_options={"allow_connect": True},
        upgrade_configs=[{"upgrade_type": "websocket"}],
        route_config={"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [_route()]}]},
        http_filters=[_ext_proc(), _extension("router", "filters.http.router.v3.Router")],
        access_log=[_access_log(settings)] if settings.logs_access else [],
    )
    chain: dict[str, object] = {"filters": [manager]}
    if settings.certificate is not None:
        chain["transport_socket"] = _tls(*settings.certificate)
    return {"name": "gateway", "address": _address(settings.host, settings.port), "filter_chains": [chain]}


def _tls(certificate: Path, key: Path) -> dict[str, object]:
    files = {"certificate_chain": {"filename": str(certificate)}, "private_key": {"filename": str(key)}}
    common = {"alpn_protocols": ["h2", "http/1.1"], "tls_certificates": [files]}
    return _extension("tls", "transport_sockets.tls.v3.DownstreamTlsContext", common_tls_context=common)


def _route() -> dict[str, object]:
    """An unreachable server costs a retry on the next destination."""
    retries = {
        "retry_on": "connect-failure,reset-before-request",
        "num_retries": _RETRIES,
        "retry_back_off": {"base_interval": "0.005s"},
    }
    return {
        "match": {"prefix": "/"},
        "route": {"cluster": MODEL_SERVERS, "timeout": _NO_TIMEOUT, "retry_policy": retries},
        "request_body_buffer_limit": MAX_BODY_BYTES,
    }


def _ext_proc() -> dict[str, object]:
    modes = {
        "request_header_mode": "SEND",
        "request_body_mode": "FULL_DUPLEX_STREAMED",
        "request_trailer_mode": "SEND",
        "response_header_mode": "SEND",
        "response_body_mode": "FULL_DUPLEX_STREAMED",
        "response_trailer_mode": "SEND",
    }
    return _extension(
        PICKER,
        "filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": PICKER}},
        message_timeout="600s",
        processing_mode=modes,
        response_attributes=["response.code_details", "upstream.address"],
        metadata_options={
            "forwarding_namespaces": {"untyped": [_METADATA, f"{_METADATA}.subset_hint"]},
            "receiving_namespaces": {"untyped": [_METADATA]},
        },
    )


def _access_log(settings: EnvoySettings) -> dict[str, object]:
    fields = {
        "time": "%START_TIME%",
        "request_id": "%REQ(X-REQUEST-ID)%",
        "method": "%REQ(:METHOD)%",
        "path": "%REQ(:PATH)%",
        "status": "%RESPONSE_CODE%",
        "flags": "%RESPONSE_FLAGS%",
        "duration_ms": "%DURATION%",
        "picked": f"%DYNAMIC_METADATA({_METADATA}:{_DESTINATION})%",
        "endpoint": "%UPSTREAM_HOST%",
        "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    }
    if settings.logs_scores:
        fields["scores"] = f"%DYNAMIC_METADATA({_METADATA}:{_DESTINATION}-scores)%"
    return _extension("stdout", "access_loggers.stream.v3.StdoutAccessLog", log_format={"json_format": fields})


def _picker_cluster(port: int) -> dict[str, object]:
    host = {"endpoint": {"address": _address("127.0.0.1", port)}}
    return {
        "name": PICKER,
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": _no_limits(),
        "typed_extension_protocol_options": _http({"http2_protocol_options": {}}),
        "load_assignment": {"cluster_name": PICKER, "endpoints": [{"lb_endpoints": [host]}]},
    }


def _model_servers(eds_file: Path) -> dict[str, object]:
    """Envoy tries the picker's destinations in order, and chooses itself only if they have just left."""
    fallback = _policy("least_request", "LeastRequest")
    override = _policy(
        "override_host",
        "OverrideHost",
        override_host_sources=[{"metadata": {"key": _METADATA, "path": [{"key": _DESTINATION}]}}],
        fallback_policy={"policies": [fallback]},
    )
    return {
        "name": MODEL_SERVERS,
        "type": "EDS",
        "connect_timeout": "2s",
        "circuit_breakers": _no_limits(),
        "typed_extension_protocol_options": _http({"http_protocol_options": {}}, idle_timeout=_SERVER_IDLE_TIMEOUT),
        "eds_cluster_config": {"eds_config": {"resource_api_version": "V3", "path_config_source": {"path": str(eds_file)}}},
        "load_balancing_policy": {"policies": [override]},
    }


def _policy(name: str, type_name: str, **settings: object) -> dict[str, object]:
    type_url = f"load_balancing_policies.{name}.v3.{type_name}"
    return {"typed_extension_config": _extension(f"envoy.load_balancing_policies.{name}", type_url, **settings)}


def _http(version: Mapping[str, object], **common: object) -> dict[str, object]:
    name = "upstreams.http.v3.HttpProtocolOptions"
    options: dict[str, object] = {"@type": _type(name), "explicit_http_config": version}
    if common:
        options["common_http_protocol_options"] = common
    return {f"envoy.extensions.{name}": options}


def _no_limits() -> dict[str, object]:
    return {"thresholds": [dict.fromkeys(("max_connections", "max_pending_requests", "max_requests", "max_retries"), _NO_LIMIT)]}
