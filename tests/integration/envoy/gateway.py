"""A real Envoy in front of real sessions: its bootstrap with one listener per dialect, and how to find and start it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]
START_SECONDS = 30.0

FULL_DUPLEX = "FULL_DUPLEX_STREAMED"


@dataclass(frozen=True)
class Dialect:
    """How one listener's ext_proc filter is configured."""

    request_body: str = FULL_DUPLEX
    response_body: str = FULL_DUPLEX
    trailers: str = "SEND"
    early_request_body: bool = False
    observability: bool = False
    allow_mode_override: bool = False


DIALECTS = {
    "full_duplex": Dialect(),
    "streamed": Dialect("STREAMED", "STREAMED"),
    "streamed_early": Dialect("STREAMED", "STREAMED", early_request_body=True),
    "buffered": Dialect("BUFFERED", "BUFFERED", allow_mode_override=True),
    "buffered_partial": Dialect("BUFFERED_PARTIAL", "BUFFERED_PARTIAL", allow_mode_override=True),
    "no_response_body": Dialect(response_body="NONE", trailers="SEND"),
    "no_bodies": Dialect("NONE", "NONE", trailers="SKIP", allow_mode_override=True),
    "observing": Dialect("STREAMED", "STREAMED", trailers="SKIP", observability=True),
}


def find_envoy() -> Path | None:
    """The Envoy binary to test with; None where there is none."""
    named = os.environ.get("ENDPICK_ENVOY")
    venv = os.environ.get("ENDPICK_ENVOY_VENV")
    places = [Path(named)] if named else []
    places += [Path(venv) / "bin/envoy"] if venv else []
    places += [REPOSITORY / ".venv-envoy/bin/envoy"]
    on_path = shutil.which("envoy")
    places += [Path(on_path)] if on_path else []
    return next((place for place in places if place.is_file() and os.access(place, os.X_OK)), None)


@dataclass
class Envoy:
    """A running Envoy and the port of each listener."""

    process: subprocess.Popen[bytes]
    admin: str
    ports: dict[str, int] = field(default_factory=dict)

    def stat(self, name: str) -> int:
        """The value of one counter or gauge; 0 if it does not exist yet."""
        text = self._get(f"/stats?filter=^{name}$")
        return int(text.rpartition(":")[2]) if text.strip() else 0

    def listeners(self) -> dict[str, int]:
        """Bound ports by listener name; raises OSError until Envoy answers."""
        statuses = json.loads(self._get("/listeners?format=json"))["listener_statuses"]
        return {item["name"]: item["local_address"]["socket_address"]["port_value"] for item in statuses}

    def healthy_pickers(self) -> set[int]:
        """The ports of the pickers to which it sends requests."""
        clusters = json.loads(self._get("/clusters?format=json"))["cluster_statuses"]
        (picker,) = (cluster for cluster in clusters if cluster["name"] == "picker")
        return {
            host["address"]["socket_address"]["port_value"]
            for host in picker["host_statuses"]
            if not host["health_status"].get("failed_active_health_check", False)
        }

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=5) as reply:
            return str(reply.read().decode())


def start_envoy(binary: Path, folder: Path, *ext_proc_ports: int, threads: int = 1, tls: Mapping[str, Any] | None = None) -> Envoy:
    """Start Envoy and wait until every listener is bound; of several pickers it checks the health.

    `tls` is the transport socket with which it reaches pickers; plain text without it.
    """
    bootstrap = folder / "bootstrap.json"
    bootstrap.write_text(json.dumps(_bootstrap(ext_proc_ports, tls)))
    admin_file = folder / "admin.txt"
    log = (folder / "envoy.log").open("wb")
    process = subprocess.Popen(
        [
            binary,
            "--config-path",
            bootstrap,
            "--admin-address-path",
            admin_file,
            "--concurrency",
            str(threads),
            "--use-dynamic-base-id",
            "--disable-hot-restart",
            "--log-level",
            "warning",
        ],
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    log.close()
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            envoy = Envoy(process, admin_file.read_text().strip())
            envoy.ports = envoy.listeners()
        except (OSError, urllib.error.URLError):
            envoy = None
        if envoy is not None and len(envoy.ports) == len(DIALECTS):
            return envoy
        signal.sigtimedwait([], 0.05)
    stop_envoy(process)
    raise RuntimeError(f"Envoy did not start:\n{(folder / 'envoy.log').read_text()}")


def stop_envoy(process: subprocess.Popen[bytes]) -> None:
    """End the process, gently first."""
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _bootstrap(ext_proc_ports: Sequence[int], tls: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        "admin": {"address": _address(0)},
        "static_resources": {
            "listeners": [_listener(name, dialect) for name, dialect in DIALECTS.items()],
            "clusters": [_ext_proc_cluster(ext_proc_ports, tls), _model_servers()],
        },
    }


def _listener(name: str, dialect: Dialect) -> dict[str, Any]:
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "codec_type": "AUTO",
        "http_protocol_options": {"enable_trailers": True},
        "http2_protocol_options": {"allow_connect": True},
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "model-servers", "timeout": "60s"}}],
                    "response_headers_to_add": [
                        {
                            "header": {
                                "key": "x-seen-metadata",
                                "value": "%DYNAMIC_METADATA(envoy.lb:x-gateway-destination-endpoint)%",
                            }
                        }
                    ],
                }
            ]
        },
        "http_filters": [
            _subset_from_header(),
            _ext_proc(dialect),
            _served_from_header(),
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
            },
        ],
    }
    return {
        "name": name,
        "address": _address(0),
        "per_connection_buffer_limit_bytes": 1024 * 1024,
        "filter_chains": [{"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}],
    }


def _ext_proc(dialect: Dialect) -> dict[str, Any]:
    mode = {
        "request_header_mode": "SEND",
        "response_header_mode": "SEND",
        "request_body_mode": dialect.request_body,
        "response_body_mode": dialect.response_body,
        "request_trailer_mode": dialect.trailers,
        "response_trailer_mode": dialect.trailers,
    }
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "60s"},
            "message_timeout": "10s",
            "processing_mode": mode,
            "allow_mode_override": dialect.allow_mode_override,
            "observability_mode": dialect.observability,
            "send_body_without_waiting_for_header_response": dialect.early_request_body,
            "response_attributes": ["response.code_details", "upstream.address"],
            "metadata_options": {
                "forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint", "envoy.lb"]},
                "receiving_namespaces": {"untyped": ["envoy.lb"]},
            },
        },
    }


def _subset_from_header() -> dict[str, Any]:
    value = {"metadata_namespace": "envoy.lb.subset_hint", "key": "x-gateway-destination-endpoint-subset"}
    return _header_to_metadata({"request_rules": [{"header": "x-test-subset", "on_header_present": value}]})


def _served_from_header() -> dict[str, Any]:
    value = {"metadata_namespace": "envoy.lb", "key": "x-gateway-destination-endpoint-served"}
    return _header_to_metadata({"response_rules": [{"header": "x-test-served", "on_header_present": value}]})


def _header_to_metadata(rules: dict[str, Any]) -> dict[str, Any]:
    config = "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config"
    return {"name": "envoy.filters.http.header_to_metadata", "typed_config": {"@type": config, **rules}}


def _ext_proc_cluster(ports: Sequence[int], tls: Mapping[str, Any] | None) -> dict[str, Any]:
    options = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    health_check = {
        "interval": "0.1s",
        "no_traffic_interval": "0.1s",
        "timeout": "5s",
        "unhealthy_threshold": 1,
        "healthy_threshold": 1,
        "grpc_health_check": {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"},
    }
    return {
        "health_checks": [health_check] if len(ports) > 1 else [],
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}, "update_merge_window": "0s"},
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "5s",
        **({} if tls is None else {"transport_socket": tls}),
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": options,
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "load_assignment": {
            "cluster_name": "picker",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(port)}} for port in ports]}],
        },
    }


def _model_servers() -> dict[str, Any]:
    options = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {
        "name": "model-servers",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "5s",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": "x-gateway-destination-endpoint"},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": options,
                "explicit_http_config": {"http_protocol_options": {"enable_trailers": True}},
            }
        },
    }


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
